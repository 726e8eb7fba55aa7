#!/bin/sh
# The flags that matter, of a cluster of three stores that keeps everything twice. Give each its own host.
set -eu
case ${1:?vmstorage, vminsert or vmselect} in
    vmstorage) exec vmstorage -storageDataPath=/var/lib/vmstorage -retentionPeriod=90d -dedup.minScrapeInterval=1ms ;;
    vminsert) exec vminsert -storageNode=vm-1:8400,vm-2:8400,vm-3:8400 -replicationFactor=2 ;;
    # Half an answer is none: a brain must not take a GPU for gone because a store was.
    vmselect) exec vmselect -storageNode=vm-1:8401,vm-2:8401,vm-3:8401 -replicationFactor=2 \
        -dedup.minScrapeInterval=1ms -search.denyPartialResponse ;;
esac
