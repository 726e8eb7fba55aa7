#!/usr/bin/env bash
# Install with pip and show how far it is: install.sh PYTHON LOG PIP-ARGUMENTS... The whole of pip's output is in LOG.
set -euo pipefail
python=$1
log=$2
shift 2

terminal=
[ -t 1 ] && terminal=1

# On a terminal one line that is written over; elsewhere, such as in CI, only what is worth a line of its own.
say() {
    if [ -n "$terminal" ]; then
        printf '\r\033[K  %s' "$1"
    elif [ -n "${2:-}" ]; then
        printf '  %s\n' "$1"
    fi
}

# A loop of the shell: awk reads a pipe in blocks, and would show a block late.
show() {
    local packages=0 kilobytes=0 line
    while IFS= read -r line; do
        case $line in
            "Collecting "*)
                packages=$((packages + 1))
                line=${line#Collecting }
                say "$packages packages, $((kilobytes / 1000)) MB: ${line%% *}" "$([ $((packages % 20)) -ne 0 ] || echo 1)"
                ;;
            *Downloading*)
                if [[ $line =~ \(([0-9]+)(\.([0-9]))?[0-9]*\ ([kM])B\) ]]; then
                    local tenths=$((BASH_REMATCH[1] * 10 + ${BASH_REMATCH[3]:-0}))
                    [ "${BASH_REMATCH[4]}" = M ] && kilobytes=$((kilobytes + tenths * 100)) || kilobytes=$((kilobytes + tenths / 10))
                fi
                ;;
            "Installing collected packages"*) say "unpacking $packages packages: a minute or two" 1 ;;
        esac
    done
    [ -z "$terminal" ] || printf '\r\033[K'
}

if ! "$python" -m pip --disable-pip-version-check install --progress-bar off "$@" 2>&1 | tee "$log" | show; then
    cat "$log" >&2
    exit 1
fi
