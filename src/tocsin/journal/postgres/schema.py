"""The tables of one cell's journal, in a schema of their own, and how they come to the newest version.

What must hold also against a brain that was stopped for a minute in the middle of a call is in functions of the
database: each is one statement, so it happens as a whole or not at all, and nothing stays locked behind it.
"""

from __future__ import annotations

from collections.abc import Sequence

from tocsin.domain.entry import GENESIS
from tocsin.domain.errors import InputError
from tocsin.journal.postgres.connections import CellDatabase, Line, NotThere

_TABLES = f"""
CREATE TABLE entry (
    seq bigint NOT NULL, epoch bigint NOT NULL, at_ms bigint NOT NULL, kind text NOT NULL, actor text NOT NULL,
    simulated smallint NOT NULL, payload text NOT NULL, previous_hash text NOT NULL, hash text NOT NULL,
    about text NOT NULL DEFAULT '', PRIMARY KEY (seq, at_ms)
) PARTITION BY RANGE (at_ms);
CREATE INDEX entry_kind ON entry (kind, seq);
CREATE INDEX entry_about ON entry (about, seq) WHERE about <> '';
CREATE FUNCTION append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'the journal is append-only'; END $$;
CREATE TRIGGER entry_append_only BEFORE UPDATE OR DELETE ON entry FOR EACH ROW EXECUTE FUNCTION append_only();

CREATE TABLE head (
    one boolean PRIMARY KEY DEFAULT true CHECK (one), seq bigint NOT NULL, hash text NOT NULL, seal text NOT NULL
);
INSERT INTO head (seq, hash, seal) VALUES (0, '{GENESIS}', '');
CREATE TABLE lease (
    one boolean PRIMARY KEY DEFAULT true CHECK (one), epoch bigint NOT NULL, holder text NOT NULL,
    until timestamptz NOT NULL
);
INSERT INTO lease (epoch, holder, until) VALUES (0, '', '-infinity');
CREATE TABLE fold (one boolean PRIMARY KEY DEFAULT true CHECK (one), content text NOT NULL);
CREATE TABLE note (name text PRIMARY KEY, content text NOT NULL);
CREATE TABLE packed (last bigint PRIMARY KEY, first bigint NOT NULL, hash text NOT NULL, content bytea NOT NULL);
"""
# Rows of `packed` have what `entry` had: entries in a row, compressed. `about` is the id that later entries name.

_MONTH = """
CREATE FUNCTION make_month(instant bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    start timestamp := date_trunc('month', to_timestamp(instant / 1000.0) AT TIME ZONE 'UTC');
    part text := 'entry_' || to_char(start, 'YYYY_MM');
BEGIN
    IF to_regclass(part) IS NOT NULL THEN
        RETURN;
    END IF;
    -- Attached and not made in place: that would wait for every reader of the journal.
    EXECUTE format('CREATE TABLE %I (LIKE entry INCLUDING DEFAULTS)', part);
    EXECUTE format(
        'ALTER TABLE entry ATTACH PARTITION %I FOR VALUES FROM (%s) TO (%s)', part,
        (extract(epoch FROM start) * 1000)::bigint, (extract(epoch FROM start + interval '1 month') * 1000)::bigint
    );
END $$;
"""

_FENCE = """
CREATE FUNCTION fence(mine bigint, me text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    found record;
BEGIN
    -- Whoever takes the lease over waits until this transaction has ended.
    SELECT epoch, holder, until INTO found FROM lease FOR SHARE;
    IF found.epoch <> mine OR found.holder <> me THEN
        RETURN 'lease';
    END IF;
    RETURN CASE WHEN found.until > clock_timestamp() THEN '' ELSE 'late' END;
END $$;
"""

_APPEND = """
CREATE FUNCTION append(
    mine bigint, me text, old_seq bigint, old_hash text, instant bigint, person text, kinds text[],
    simulations smallint[], payloads text[], befores text[], hashes text[], abouts text[], sealed text, folded text
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    refused text := fence(mine, me);
    found record;
    added bigint := array_length(hashes, 1);
BEGIN
    IF refused <> '' THEN
        RETURN refused;
    END IF;
    SELECT seq, hash INTO found FROM head FOR UPDATE;
    IF found.seq <> old_seq OR found.hash <> old_hash THEN
        RETURN 'head';
    END IF;
    PERFORM make_month(instant);
    INSERT INTO entry (seq, epoch, at_ms, kind, actor, simulated, payload, previous_hash, hash, about)
    SELECT old_seq + row.number, mine, instant, row.kind, person, row.simulated, row.payload, row.before, row.hash,
        row.about
    FROM unnest(kinds, simulations, payloads, befores, hashes, abouts) WITH ORDINALITY
        AS row (kind, simulated, payload, before, hash, about, number);
    UPDATE head SET seq = old_seq + added, hash = hashes[added], seal = sealed;
    IF folded IS NOT NULL THEN
        INSERT INTO fold (content) VALUES (folded) ON CONFLICT (one) DO UPDATE SET content = excluded.content;
    END IF;
    PERFORM pg_notify(current_schema() || '_appended', (old_seq + added)::text);
    RETURN '';
END $$;
"""

_PACK = """
CREATE FUNCTION pack(mine bigint, me text, begins bigint, ends bigint, own text, rows bytea)
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    refused text := fence(mine, me);
BEGIN
    IF refused = '' AND begins <> (SELECT coalesce(max(last), 0) + 1 FROM packed) THEN
        RETURN 'head';
    END IF;
    IF refused = '' THEN
        INSERT INTO packed (last, first, hash, content) VALUES (ends, begins, own, rows);
    END IF;
    RETURN refused;
END $$;
CREATE FUNCTION drop_packed_months() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    month regclass;
    newest bigint;
    dropped bigint := 0;
BEGIN
    -- Nobody waits where nothing is to be done.
    FOR month IN SELECT inhrelid::regclass FROM pg_inherits WHERE inhparent = 'entry'::regclass LOOP
        EXECUTE format('SELECT max(seq) FROM %s', month) INTO newest;
        dropped := dropped + coalesce((newest <= (SELECT max(last) FROM packed))::integer, 0);
    END LOOP;
    IF dropped = 0 THEN
        RETURN 0;
    END IF;
    dropped := 0;
    LOCK TABLE entry IN ACCESS EXCLUSIVE MODE;
    FOR month IN SELECT inhrelid::regclass FROM pg_inherits WHERE inhparent = 'entry'::regclass LOOP
        EXECUTE format('SELECT max(seq) FROM %s', month) INTO newest;
        IF newest <= (SELECT max(last) FROM packed) THEN
            EXECUTE format('DROP TABLE %s', month);
            dropped := dropped + 1;
        END IF;
    END LOOP;
    RETURN dropped;
END $$;
"""

MIGRATIONS: tuple[str, ...] = (_TABLES + _MONTH + _FENCE + _APPEND + _PACK,)
"""Script n brings schema version n to n + 1; the version is in table `version`. There is no way back."""


def version_of(line: Line) -> int:
    """Version of the schema; 0 where there is none."""
    try:
        return int(line.ask("SELECT version FROM version")[0][0])
    except NotThere:
        return 0


def refuse(found: int, database: CellDatabase, newest: int = len(MIGRATIONS)) -> None:
    """Raise InputError where the schema is of a newer version than `newest`, or there is none."""
    if found > newest:
        remedy = "use the version of Tocsin that wrote it"
        raise InputError("journal", database.name, f"has schema version {found}", remedy)
    if not found:
        remedy = "start a brain with this journal.url and journal.cell once, or restore a backup"
        raise InputError("journal", database.name, "does not exist", remedy)


def prepare(database: CellDatabase, scripts: Sequence[str] = MIGRATIONS) -> None:
    """Make what is missing of the schema by its `scripts`, one transaction a step; several may do so at once.

    Raises InputError for a schema of a newer version or a database that is not in UTF-8, and Unavailable.
    """
    line = database.line()
    try:
        encoding = line.ask("SHOW server_encoding")[0][0]
        if encoding != "UTF8":
            remedy = "make a database with ENCODING 'UTF8'"
            raise InputError("journal.url", database.name, f"has the encoding {encoding}", remedy)
        found = version_of(line)
        for number in range(found, len(scripts)):
            line.ask(_step(database.schema, number, scripts[number]))
        refuse(max(found, version_of(line)), database, len(scripts))
    finally:
        line.close()


def _step(schema: str, number: int, script: str) -> str:
    first = f"""
CREATE SCHEMA IF NOT EXISTS "{schema}";
CREATE TABLE IF NOT EXISTS version (one boolean PRIMARY KEY DEFAULT true CHECK (one), version integer NOT NULL);
INSERT INTO version (version) VALUES (0) ON CONFLICT DO NOTHING;
"""
    # The lock is the transaction's: who comes second finds the step done.
    return f"""
BEGIN;
SELECT pg_advisory_xact_lock(hashtext('tocsin journal {schema}'));
{first if number == 0 else ""}
DO $step$ BEGIN
    IF (SELECT version FROM version) = {number} THEN
        {_as_statements(script)}
        UPDATE version SET version = {number + 1};
    END IF;
END $step$;
COMMIT;
"""


def _as_statements(script: str) -> str:
    """The script as one statement of PL/pgSQL."""
    return f"EXECUTE $script${script}$script$;"
