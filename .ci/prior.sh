#!/usr/bin/env bash
# Train the model that ships on a simulated fleet and the GWDG recordings below $TOCSIN_DATA_DIR, and put
# it into its place if it beats the rules.
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
also=()
for file in "$TOCSIN_DATA_DIR"/gwdg/telemetry/*; do
    also+=(--also "$file")
done
nice "$tocsin" train --simulated 2048 --days 60 "${also[@]}" --version prior-1 --out "$made/shelf" | tee "$made/report"
grep -q "^  wins: " "$made/report" || { echo "prior: it does not beat the rules; $place stays as it is" >&2; exit 1; }
cp -r "$made/shelf/prior-1" "$place"
chmod -R u=rwX,go=rX "$place"
