# shellcheck shell=sh
# What prolog, epilog and health check share. `scan` sets code and told, and keeps both for the next job's prolog.
: "${here:?is set by the script that reads this}"
TOCSIN=/opt/tocsin/bin/tocsin
SECONDS_TO_SCAN=30
VERDICT=/run/tocsin-slurm/verdict
VERDICT_SECONDS=600
BLIND=run
GIVE_BACK=no
PATH=$PATH:/usr/bin:/bin:/usr/sbin:/sbin
# shellcheck source=tocsin-slurm.conf
[ ! -r "$here/tocsin-slurm.conf" ] || . "$here/tocsin-slurm.conf"
node=${SLURMD_NODENAME:-$(hostname -s)}
# A reason that begins otherwise is somebody else's; one of the brain begins with "tocsin: ".
mark="gpu health: "

scan() {
    found=$(timeout -k 5 "$SECONDS_TO_SCAN" "$TOCSIN" scan 2>&1)
    code=$?
    [ "$code" -le 3 ] || code=3
    told=$(printf '%s\n' "$found" | grep -m 1 -e '^critical: ' -e '^not seen' -e '^tocsin: ')
    [ -n "$told" ] || told=$(printf '%s\n' "$found" | head -n 1)
    # Slurm keeps a reason as one line; quotes in it would only confuse who reads it.
    told=$(printf '%s' "$told" | tr -d '\n"' | cut -c 1-200)
    mkdir -p "$(dirname "$VERDICT")"
    printf '%s %s\n' "$code" "$told" > "$VERDICT.new" && mv "$VERDICT.new" "$VERDICT"
}

bad() {
    [ "$code" -eq 2 ] || { [ "$code" -eq 3 ] && [ "$BLIND" = drain ]; }
}

reason_of_node() {
    scontrol show node "$node" 2> /dev/null | sed -n 's/^ *Reason=\(.*\) \[.*$/\1/p'
}

# Whoever drained the node before keeps the word.
drain() {
    [ -n "$(reason_of_node)" ] || scontrol update "nodename=$node" state=drain "reason=$mark$told"
}
