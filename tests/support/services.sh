#!/usr/bin/env bash
# `systemctl start|stop|restart UNIT` and `journalctl --unit UNIT` for one follower of the directory
# `store`, without systemd. It is started once its page says that it is ready.
set -euo pipefail
stop() {
    [[ ! -e follower.pid ]] && return
    kill -TERM "$(<follower.pid)"
    tail --pid="$(<follower.pid)" --follow /dev/null
    rm follower.pid
}
start() {
    tieredstore --conf tieredstore.conf tier store --follow </dev/null >>follower.log 2>&1 &
    echo $! >follower.pid
    until curl -fs "http://127.0.0.1:$METRICS_PORT/readyz" >/dev/null; do
        kill -0 "$(<follower.pid)"
        sleep 0.1
    done
}
case "$(basename "$0") $1" in
"journalctl --unit") cat follower.log ;;
"systemctl start") start ;;
"systemctl stop") stop ;;
"systemctl restart") stop && start ;;
*) exit 64 ;;
esac
