"""The tables that the cells of a fleet share, in a schema of their own beside those of the cells' journals.

What is taken of the fleet's limits is a row, added by the statement that appends the start of an action to the cell's
journal: both or neither. Who takes, and who tells of itself, holds the one row of `budget` meanwhile, after those of
its own journal and never before: so takers wait for each other, and nobody for ever.
"""

from __future__ import annotations

from tocsin.journal.postgres.connections import SPENT

STALE_SECONDS = 120
"""Age of a cell's figures from which on its GPUs widen no limit any more (own choice: `actions.fresh_seconds`)."""

_TABLES = """
CREATE TABLE cell (
    name text PRIMARY KEY, epoch bigint NOT NULL, url text NOT NULL, managed bigint NOT NULL, gpus bigint NOT NULL,
    limits jsonb NOT NULL, counted_at timestamptz NOT NULL
);
CREATE TABLE pool (
    cell text NOT NULL, name text NOT NULL, counted bigint NOT NULL, usable bigint NOT NULL, PRIMARY KEY (cell, name)
);
CREATE TABLE outside (
    cell text NOT NULL, subject text NOT NULL, host text NOT NULL, racks text[] NOT NULL, PRIMARY KEY (cell, subject)
);
CREATE TABLE taking (
    cell text NOT NULL, key text NOT NULL, epoch bigint NOT NULL, subject text NOT NULL, hosts text[] NOT NULL,
    racks text[] NOT NULL, gpus text[] NOT NULL, gpu_hosts text[] NOT NULL, lost jsonb NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp(), PRIMARY KEY (cell, key)
);
CREATE TABLE attempt (
    cell text NOT NULL, key text NOT NULL, slot text NOT NULL, action text NOT NULL, hosts text[] NOT NULL,
    disruptive boolean NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp(), PRIMARY KEY (cell, key)
);
CREATE INDEX attempt_at ON attempt (at);
CREATE TABLE cause (cell text NOT NULL, name text NOT NULL, at timestamptz NOT NULL, PRIMARY KEY (cell, name));
CREATE TABLE budget (one boolean PRIMARY KEY DEFAULT true CHECK (one), reset_at timestamptz NOT NULL);
INSERT INTO budget (reset_at) VALUES ('-infinity');
"""

_TOLD = """
CREATE FUNCTION texts(list jsonb) RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(array_agg(value), '{}') FROM jsonb_array_elements_text(list)
$$;
CREATE FUNCTION lost_of(pools jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(jsonb_object_agg(key, value -> 'lost'), '{}') FROM jsonb_each(pools)
$$;
CREATE FUNCTION publish(me text, mine bigint, who text, share jsonb) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    found record;
BEGIN
    -- In the cell's own schema: who takes its lease over waits until this transaction has ended.
    EXECUTE format('SELECT epoch, holder, until FROM %I.lease FOR SHARE', 'tocsin_' || me) INTO found;
    IF found.epoch <> mine OR found.holder <> who OR found.until <= clock_timestamp() THEN
        RETURN 'lease';
    END IF;
    PERFORM FROM budget FOR UPDATE;
    INSERT INTO cell (name, epoch, url, managed, gpus, limits, counted_at) VALUES (
        me, mine, share ->> 'url', (share ->> 'managed')::bigint, (share ->> 'gpus')::bigint, share -> 'limits',
        clock_timestamp()
    ) ON CONFLICT (name) DO UPDATE SET epoch = excluded.epoch, url = excluded.url, managed = excluded.managed,
        gpus = excluded.gpus, limits = excluded.limits, counted_at = excluded.counted_at;
    DELETE FROM pool WHERE cell = me;
    INSERT INTO pool SELECT me, key, (value ->> 0)::bigint, (value ->> 1)::bigint FROM jsonb_each(share -> 'pools');
    DELETE FROM outside WHERE cell = me;
    INSERT INTO outside SELECT me, value ->> 0, value ->> 1, texts(value -> 2)
    FROM jsonb_array_elements(share -> 'outside');
    -- What is in effect no more is given back. What is, is taken whatever the limits say, also by who came later.
    DELETE FROM taking WHERE cell = me AND NOT key = ANY (
        SELECT value ->> 'key' FROM jsonb_array_elements(share -> 'takings')
    );
    INSERT INTO taking (cell, key, epoch, subject, hosts, racks, gpus, gpu_hosts, lost)
    SELECT me, one ->> 'key', mine, one ->> 'subject', texts(one -> 'hosts'), texts(one -> 'racks'),
        texts(one -> 'gpus'), texts(one -> 'gpu_hosts'), lost_of(one -> 'pools')
    FROM jsonb_array_elements(share -> 'takings') AS one ON CONFLICT (cell, key) DO UPDATE SET epoch = excluded.epoch;
    DELETE FROM attempt WHERE at < clock_timestamp() - interval '1 day';
    RETURN '';
END $$;
CREATE FUNCTION tell_causes(me text, causes jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    reset timestamptz;
BEGIN
    SELECT reset_at INTO reset FROM budget FOR UPDATE;
    DELETE FROM cause WHERE cell = me;
    INSERT INTO cause SELECT me, key, found.at FROM jsonb_each_text(causes),
        LATERAL (SELECT clock_timestamp() - make_interval(secs => value::float8) AS at) AS found WHERE found.at > reset;
END $$;
CREATE FUNCTION forget_causes() RETURNS void LANGUAGE sql AS $$
    UPDATE budget SET reset_at = clock_timestamp();
    DELETE FROM cause;
$$;
CREATE FUNCTION forget_cell(gone text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    known boolean;
BEGIN
    PERFORM FROM budget FOR UPDATE;
    DELETE FROM cell WHERE name = gone;
    known := FOUND;
    DELETE FROM pool WHERE cell = gone;
    DELETE FROM outside WHERE cell = gone;
    DELETE FROM taking WHERE cell = gone;
    DELETE FROM cause WHERE cell = gone;
    RETURN known;
END $$;
"""

_TAKE = """
CREATE FUNCTION spent(which text, observed bigint, most bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the limit % of the fleet leaves no room: % would be, at most %', which, observed, most
        USING ERRCODE = 'SPENT_STATE';
END $$;
CREATE FUNCTION take(me text, mine bigint, wanted jsonb) RETURNS boolean LANGUAGE plpgsql
SET search_path = "SCHEMA_NAME" AS $$
DECLARE
    most record;
    n bigint;
BEGIN
    PERFORM FROM budget FOR UPDATE;
    -- Who has not told of itself in this epoch may have takings of the one before that nobody has settled.
    IF NOT EXISTS (SELECT FROM cell WHERE name = me AND epoch = mine) THEN
        PERFORM spent('cells', 0, 0);
    END IF;
    SELECT min((limits ->> 'max_concurrent')::bigint) AS concurrent,
        min((limits ->> 'max_concurrent_ratio')::float8) AS ratio, min((limits ->> 'max_per_host')::bigint) AS host,
        min((limits ->> 'max_per_rack')::bigint) AS rack, max((limits ->> 'min_available_ratio')::float8) AS available,
        min((limits ->> 'attempts_per_day')::bigint) AS attempts,
        min((limits ->> 'attempts_per_host_per_day')::bigint) AS host_attempts,
        min((limits ->> 'breaker_root_causes')::bigint) AS causes,
        max((limits ->> 'breaker_window_seconds')::float8) AS span
    INTO most FROM cell;
    SELECT count(*) INTO n FROM attempt
    WHERE slot = wanted ->> 'slot' AND action = wanted ->> 'action' AND at > clock_timestamp() - interval '1 day';
    IF n + 1 > most.attempts THEN
        PERFORM spent('attempts', n + 1, most.attempts);
    END IF;
    IF (wanted ->> 'disruptive')::boolean THEN
        PERFORM take_places(most.concurrent, most.host, most.rack, most.host_attempts, wanted);
        PERFORM take_share(most.ratio, texts(wanted -> 'gpus'), texts(wanted -> 'gpu_hosts'));
        PERFORM take_pools(me, most.available, wanted -> 'pools');
        SELECT count(DISTINCT name) INTO n FROM cause, budget
        WHERE at > reset_at AND at > clock_timestamp() - make_interval(secs => most.span);
        IF n >= most.causes THEN
            PERFORM spent('breaker', n, most.causes - 1);
        END IF;
        INSERT INTO taking (cell, key, epoch, subject, hosts, racks, gpus, gpu_hosts, lost) VALUES (
            me, wanted ->> 'key', mine, wanted ->> 'subject', texts(wanted -> 'hosts'), texts(wanted -> 'racks'),
            texts(wanted -> 'gpus'), texts(wanted -> 'gpu_hosts'), lost_of(wanted -> 'pools')
        );
    END IF;
    INSERT INTO attempt (cell, key, slot, action, hosts, disruptive) VALUES (
        me, wanted ->> 'key', wanted ->> 'slot', wanted ->> 'action', texts(wanted -> 'hosts'),
        (wanted ->> 'disruptive')::boolean
    );
    RETURN true;
END $$;
CREATE FUNCTION take_places(concurrent bigint, per_host bigint, per_rack bigint, host_attempts bigint, wanted jsonb)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    place text;
    n bigint;
BEGIN
    SELECT count(*) INTO n FROM occupied WHERE subject <> wanted ->> 'subject';
    IF n + 1 > concurrent THEN
        PERFORM spent('max_concurrent', n + 1, concurrent);
    END IF;
    FOREACH place IN ARRAY texts(wanted -> 'hosts') LOOP
        SELECT count(*) INTO n FROM occupied WHERE subject <> wanted ->> 'subject' AND place = ANY (hosts);
        IF n + 1 > per_host THEN
            PERFORM spent('max_per_host', n + 1, per_host);
        END IF;
        SELECT count(*) INTO n FROM attempt
        WHERE disruptive AND place = ANY (hosts) AND at > clock_timestamp() - interval '1 day';
        IF n + 1 > host_attempts THEN
            PERFORM spent('attempts', n + 1, host_attempts);
        END IF;
    END LOOP;
    FOREACH place IN ARRAY texts(wanted -> 'racks') LOOP
        SELECT count(*) INTO n FROM occupied WHERE subject <> wanted ->> 'subject' AND place = ANY (racks);
        IF n + 1 > per_rack THEN
            PERFORM spent('max_per_rack', n + 1, per_rack);
        END IF;
    END LOOP;
END $$;
CREATE FUNCTION take_share(ratio float8, taken text[], taken_hosts text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    n bigint;
    places bigint;
    total bigint;
BEGIN
    IF NOT EXISTS (SELECT FROM unnest(taken) AS gpu WHERE gpu NOT IN (SELECT uuid FROM gone)) THEN
        RETURN;
    END IF;
    SELECT count(*) INTO n FROM (SELECT uuid FROM gone UNION SELECT unnest(taken)) AS every;
    SELECT count(*) INTO places FROM (
        SELECT unnest(gpu_hosts) FROM taking UNION SELECT host FROM outside UNION SELECT unnest(taken_hosts)
    ) AS every;
    SELECT coalesce(sum(managed), 0) INTO total FROM cell WHERE is_fresh(counted_at);
    IF n > floor(ratio * total + 1e-9) AND NOT (ratio > 0 AND total > 0 AND places = 1) THEN
        PERFORM spent('max_share', n, floor(ratio * total + 1e-9)::bigint);
    END IF;
END $$;
CREATE FUNCTION take_pools(me text, ratio float8, pools jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    wanted record;
    found record;
BEGIN
    FOR wanted IN SELECT key AS name, (value ->> 'lost')::bigint AS lost, (value ->> 'alone')::boolean AS alone
        FROM jsonb_each(pools)
    LOOP
        SELECT count(*) FILTER (WHERE cell <> me) AS others, sum(counted) AS counted, sum(usable) AS usable,
            sum(counted - usable) FILTER (WHERE cell <> me) AS lacking
        INTO found FROM pool_now WHERE name = wanted.name;
        -- Of a pool that is here alone the guards of this cell say all.
        IF found.others > 0 AND wanted.lost > 0 AND found.usable - wanted.lost < ceil(ratio * found.counted - 1e-9)
            AND NOT (wanted.alone AND found.lacking = 0)
        THEN
            PERFORM spent(
                'capacity', (found.usable - wanted.lost)::bigint, ceil(ratio * found.counted - 1e-9)::bigint
            );
        END IF;
    END LOOP;
END $$;
"""

_VIEWS = f"""
CREATE FUNCTION is_fresh(at timestamptz) RETURNS boolean LANGUAGE sql AS $$
    SELECT at > clock_timestamp() - interval '{STALE_SECONDS} seconds'
$$;
CREATE VIEW occupied AS
    SELECT subject, array_agg(DISTINCT cell) AS cells, array_agg(DISTINCT host) AS hosts,
        array_agg(DISTINCT rack) AS racks
    FROM (
        SELECT cell, subject, host, rack FROM taking LEFT JOIN LATERAL unnest(hosts) AS host ON true
            LEFT JOIN LATERAL unnest(racks) AS rack ON true
        UNION ALL
        SELECT cell, subject, host, rack FROM outside LEFT JOIN LATERAL unnest(racks) AS rack ON true
    ) AS every GROUP BY subject;
CREATE VIEW gone AS
    SELECT uuid, array_agg(DISTINCT cell) AS cells
    FROM (SELECT cell, unnest(gpus) AS uuid FROM taking UNION ALL SELECT cell, substr(subject, 5) FROM outside) AS every
    GROUP BY uuid;
CREATE VIEW pool_now AS
    SELECT pool.cell, pool.name, pool.counted, CASE WHEN is_fresh(cell.counted_at) THEN greatest(0, pool.usable - (
        -- What was taken since the cell has told of itself is not in its figures yet.
        SELECT coalesce(sum((lost ->> pool.name)::bigint), 0) FROM taking
        WHERE taking.cell = pool.cell AND taking.at > cell.counted_at
    )) ELSE 0 END AS usable
    FROM pool JOIN cell ON cell.name = pool.cell;
"""

_HOSTS = """
ALTER TABLE cell ADD COLUMN hosts jsonb NOT NULL DEFAULT '[]';
CREATE FUNCTION tell_hosts(me text, mine bigint, patterns jsonb) RETURNS void LANGUAGE sql AS $$
    UPDATE cell SET hosts = patterns WHERE name = me AND epoch = mine
$$;
"""

_PAST = """
CREATE TABLE past (
    cell text NOT NULL, kind text NOT NULL, name text NOT NULL, starts timestamptz NOT NULL, until timestamptz NOT NULL,
    content jsonb NOT NULL, PRIMARY KEY (cell, kind, name)
);
CREATE FUNCTION tell_past(me text, mine bigint, told jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM budget FOR UPDATE;
    IF NOT EXISTS (SELECT FROM cell WHERE name = me AND epoch = mine) THEN
        RETURN;
    END IF;
    DELETE FROM past WHERE until <= clock_timestamp() OR (cell = me AND NOT (kind, name) IN (
        SELECT value ->> 0, value ->> 1 FROM jsonb_array_elements(told)
    ));
    INSERT INTO past SELECT me, value ->> 0, value ->> 1,
        clock_timestamp() + make_interval(secs => (value ->> 2)::float8),
        clock_timestamp() + make_interval(secs => (value ->> 3)::float8), value -> 4
    FROM jsonb_array_elements(told) ON CONFLICT (cell, kind, name) DO UPDATE SET
        starts = excluded.starts, until = excluded.until,
        -- What it covers is known while its causes are: what has moved is not seen there any more.
        content = CASE WHEN excluded.content -> 'covers' IS NULL THEN excluded.content
            ELSE excluded.content || jsonb_build_object('covers', (
                SELECT coalesce(jsonb_agg(DISTINCT every), '[]')
                FROM jsonb_array_elements((past.content -> 'covers') || (excluded.content -> 'covers')) AS every
            )) END;
END $$;
"""

_SPREAD = """
ALTER TABLE cell ADD COLUMN spread float8;
CREATE FUNCTION tell_spread(me text, mine bigint, gone_seconds float8) RETURNS void LANGUAGE sql AS $$
    UPDATE cell SET spread = gone_seconds WHERE name = me AND epoch = mine
$$;
"""

_PLACES = """
CREATE TABLE place (
    cell text NOT NULL REFERENCES cell ON DELETE CASCADE, gpu text NOT NULL, host text NOT NULL, PRIMARY KEY (cell, gpu)
);
CREATE INDEX place_gpu ON place (gpu);
CREATE FUNCTION tell_places(me text, mine bigint, anew boolean, come jsonb, gone jsonb) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM cell WHERE name = me AND epoch = mine FOR SHARE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    DELETE FROM place WHERE cell = me AND (anew OR gpu = ANY (texts(gone)));
    INSERT INTO place SELECT me, key, value FROM jsonb_each_text(come)
    ON CONFLICT (cell, gpu) DO UPDATE SET host = excluded.host;
END $$;
CREATE FUNCTION places_elsewhere(me text, asked jsonb) RETURNS TABLE (gpu text, cell text) LANGUAGE sql AS $$
    SELECT place.gpu, place.cell FROM jsonb_each_text(asked) AS mine
    JOIN place ON place.gpu = mine.key AND place.host = mine.value AND place.cell <> me
    JOIN cell ON cell.name = place.cell AND is_fresh(cell.counted_at)
$$;
"""

_TRIES = """
-- A cell whose journal was put back to an older state may try again under a key that it had then: both tries count.
ALTER TABLE attempt DROP CONSTRAINT attempt_pkey, ADD PRIMARY KEY (cell, key, at);
"""

_CAUSES = """
-- Who has lost its lease without knowing it must not take back what its successor has told.
CREATE FUNCTION tell_causes(me text, mine bigint, causes jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM budget FOR UPDATE;
    IF EXISTS (SELECT FROM cell WHERE name = me AND epoch = mine) THEN
        PERFORM tell_causes(me, causes);
    END IF;
END $$;
"""

MIGRATIONS: tuple[str, ...] = (_TABLES + _TOLD + _VIEWS + _TAKE, _HOSTS, _PAST, _SPREAD, _PLACES, _TRIES, _CAUSES)
"""Script n brings the fleet's version n to n + 1. `SCHEMA_NAME` is the schema, `SPENT_STATE` the state of the error by
which `take` refuses."""


def scripts_of(schema: str) -> tuple[str, ...]:
    """The scripts for the fleet in `schema`."""
    return tuple(script.replace("SCHEMA_NAME", schema).replace("SPENT_STATE", SPENT) for script in MIGRATIONS)
