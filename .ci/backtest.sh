#!/usr/bin/env bash
# Run every data set below $TOCSIN_DATA_DIR through `tocsin backtest`, one after the other; write the report to docs/.
set -euo pipefail
tocsin=${1:?name the program}
: "${TOCSIN_DATA_DIR:?must name the folder of data sets, see docs/backtest.md}"
# One thread, so that the same run gives the same numbers on every machine.
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1

commit=$(git rev-parse HEAD)
folders=(backblaze:backblaze_hds titan:titan infinitehbd:infinitehbd gwdg:gwdg smd:smd_asd)
for pair in "${folders[@]}"; do
    folder=$TOCSIN_DATA_DIR/${pair#*:}
    [ -d "$folder" ] || { echo "backtest: $folder is not there; TOCSIN_DATA_DIR must have all data sets" >&2; exit 2; }
done

run() {
    echo "backtest: $1" >&2
    nice "$tocsin" backtest --dataset "$@" --leak --commit "$commit" --out docs > /dev/null
}

began=$SECONDS
run simulator
run quantiles
for pair in "${folders[@]}"; do
    run "${pair%%:*}" --train "$TOCSIN_DATA_DIR/${pair#*:}"
done
echo "backtest: docs/accuracy_figures.md written, $(((SECONDS - began + 59) / 60)) minutes" >&2
