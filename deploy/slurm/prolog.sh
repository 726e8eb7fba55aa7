#!/bin/sh
# Prolog of slurm.conf: no job starts on a node whose GPUs want action now. Slurm then drains the node and puts the job
# back into the queue. A fresh good verdict of the health check is taken as it is, so that jobs do not wait for a scan; a
# bad one is looked at anew, for whoever gave the node back may have mended it since.
here=$(dirname "$0")
# shellcheck source=common.sh
. "$here/common.sh"
if [ -n "$(find "$VERDICT" -newermt "-$VERDICT_SECONDS seconds" 2> /dev/null)" ]; then
    read -r code told < "$VERDICT"
    ! bad || scan
else
    scan
fi
if bad; then
    drain
    echo "print tocsin: $node takes no job: $told"
    exit 1
fi
exit 0
