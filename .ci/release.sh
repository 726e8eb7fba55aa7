#!/usr/bin/env bash
# A release of the checked-out commit in dist/tocsin-VERSION: sdist, wheel, constraints, Helm chart, Kubernetes manifests,
# SBOM, notes and checksums. The same commit gives the same bytes. release.sh PYTHON
set -euo pipefail
python=$1
cd "$(dirname "$0")/.."
fail() {
    echo "release: $*" >&2
    exit 2
}

version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' src/tocsin/__init__.py)
[ -z "$(git status --porcelain)" ] || fail "the tree has changes that are in no commit; commit or stash them"
notes=$(awk -v head="## [$version]" 'index($0, "## ") == 1 { on = index($0, head) == 1; next } on' CHANGELOG.md)
[ -n "${notes//[[:space:]]/}" ] || fail "CHANGELOG.md has nothing under ## [$version], the version of src/tocsin/__init__.py"
grep -rhoE '^ *newTag: .*' deploy/kubernetes | grep -vqE "newTag: $version\$" &&
    fail "a newTag below deploy/kubernetes is not $version"
for key in version appVersion; do
    grep -qx "$key: $version" deploy/helm/tocsin/Chart.yaml || fail "$key of deploy/helm/tocsin/Chart.yaml is not $version"
done
PATH=$(dirname "$python"):$PATH
command -v helm >/dev/null || fail "there is no helm to pack the chart with; \`make setup\` brings one for x86-64"

SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
out=$PWD/dist/tocsin-$version
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rm -rf "$out"
mkdir -p "$out"

# From the commit, not from the folder: what git ignores is in no release.
git archive --prefix=tree/ HEAD | tar -x -C "$work"
"$python" -m build --no-isolation --outdir "$out" "$work/tree" >"$work/build.log" 2>&1 || { cat "$work/build.log"; exit 1; }
# setuptools keeps the times of files, helm writes that of the packing, and tar the order of the folder.
pack() {
    tar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner -C "$1" -c "$2" | gzip -n9 >"$out/$3"
}
tar -xzf "$out/tocsin-$version.tar.gz" -C "$work"
pack "$work" "tocsin-$version" "tocsin-$version.tar.gz"
mkdir "$work/chart"
helm package "$work/tree/deploy/helm/tocsin" --destination "$work/chart" >"$work/chart.log" 2>&1 || { cat "$work/chart.log"; exit 1; }
tar -xzf "$work/chart/tocsin-$version.tgz" -C "$work/chart"
pack "$work/chart" tocsin "tocsin-chart-$version.tgz"
mv "$work/tree/deploy/kubernetes" "$work/tocsin-kubernetes-$version"
pack "$work" "tocsin-kubernetes-$version" "tocsin-kubernetes-$version.tar.gz"
cp constraints.txt "$out/"
printf '%s\n' "$notes" >"$out/NOTES.md"

# What `pip install` brings beside the wheel, with the pinned versions and the hashes of their files.
"$python" -m pip --disable-pip-version-check install --quiet --dry-run --ignore-installed --report "$work/report.json" \
    -c constraints.txt "$(echo "$out"/*.whl)[brain,dashboard,terminal,kubernetes,access]"
"$python" .ci/sbom.py "$work/report.json" "$version" >"$out/tocsin-$version.cdx.json"

(cd "$out" && sha256sum -- * >SHA256SUMS)
ls -l "$out"
