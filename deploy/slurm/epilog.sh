#!/bin/sh
# Epilog of slurm.conf: looks at the GPUs before the next job may have them. It never fails itself: Slurm would drain
# the node with a reason that says nothing.
here=$(dirname "$0")
# shellcheck source=common.sh
. "$here/common.sh"
scan
! bad || drain
exit 0
