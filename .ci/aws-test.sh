#!/usr/bin/env bash
# Test the extra aws in an environment of its own.
set -euo pipefail
python=$1
place=build/aws
constraints=$(mktemp)
trap 'rm -f "$constraints"' EXIT
grep -v -i '^python-dateutil==' constraints.txt > "$constraints"
[ -x "$place/bin/python" ] || "$python" -m venv "$place"
"$place/bin/python" -m pip --disable-pip-version-check install --quiet -c "$constraints" -c .ci/constraints-aws.txt \
    -e ".[aws]" pytest
"$place/bin/python" -m pytest tests/unit/test_cloud_boto.py
