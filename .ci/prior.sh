#!/usr/bin/env bash
# Train the model that ships on a simulated fleet, judge it on the GWDG recordings below $TOCSIN_DATA_DIR, none of which
# it was fitted on, and put it into its place with both records if it beats the rules.
set -euo pipefail
tocsin=${1:?name the program}
: "${TOCSIN_DATA_DIR:?must name the folder of data sets, see docs/backtest.md}"
place=forecaster/prior
# One thread, so that the same run gives the same model on every machine.
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1

made=$(mktemp -d)
# The old one steps aside: as the model in service it would be a rival, and it has seen the same simulated fleet.
[ ! -d "$place" ] || mv "$place" "$made/old"
trap '[ -d "$place" ] || { [ ! -d "$made/old" ] || mv "$made/old" "$place"; }; rm -rf "$made"' EXIT
nice "$tocsin" train --simulated 2048 --days 60 --version prior-3 --out "$made/shelf" | tee "$made/report"
grep -q "^  wins: " "$made/report" || { echo "prior: it does not beat the rules; $place stays as it is" >&2; exit 1; }
nice "$tocsin" models judge prior-3 "$TOCSIN_DATA_DIR"/gwdg/telemetry/* --models "$made/shelf"
cp -r "$made/shelf/prior-3" "$place"
# What kinds of statements are worth is counted apart: make statements.
[ ! -f "$made/old/statements.json" ] || cp "$made/old/statements.json" "$place"
chmod -R u=rwX,go=rX "$place"
