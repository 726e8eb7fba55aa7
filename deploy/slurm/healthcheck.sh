#!/bin/sh
# HealthCheckProgram of slurm.conf: drains a node whose GPUs want action now, with the reason in words.
here=$(dirname "$0")
# shellcheck source=common.sh
. "$here/common.sh"
scan
if bad; then
    drain
elif [ "$code" -le 1 ] && [ "$GIVE_BACK" = yes ]; then
    case $(reason_of_node) in
        "$mark"*) scontrol update "nodename=$node" state=resume ;;
    esac
fi
exit 0
