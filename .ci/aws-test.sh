#!/usr/bin/env bash
# Run the tests of the extra aws. boto3 asks for an older python-dateutil than the Kubernetes client does, so that both
# cannot be in one environment: boto3 and what it needs lie in a folder of their own, before .venv on the path.
set -euo pipefail
python=$1
place=build/aws
wanted=.ci/constraints-aws.txt
if ! cmp -s "$wanted" "$place/installed.txt"; then
    rm -rf "$place"
    "$python" -m pip --disable-pip-version-check install --quiet --no-deps --target "$place" -r "$wanted"
    cp "$wanted" "$place/installed.txt"
fi
PYTHONPATH="$place" TOCSIN_TEST_AWS=1 "$python" -m pytest -p no:xdist -q tests/unit/actions/test_cloud_boto.py
