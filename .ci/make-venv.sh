#!/usr/bin/env bash
# Make a virtual environment: make-venv.sh PYTHON FOLDER. Debian keeps the venv module in a package of its own.
set -euo pipefail
python=$1
folder=$2
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "Tocsin needs Python 3.11 or newer; $python is $("$python" -V). Name another with PYTHON=..." >&2
    exit 1
}
if ! "$python" -c 'import ensurepip, venv' 2> /dev/null; then
    if [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3-venv > /dev/null
    else
        echo "$python has no venv module; on Debian: apt-get install python3-venv" >&2
        exit 1
    fi
fi
# A half-made environment would pass for a whole one at the next call.
trap 'rm -rf "$folder"' ERR
"$python" -m venv "$folder"
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade pip
