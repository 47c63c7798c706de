#!/bin/sh
# Kubernetes' tests call busybox's `wget -q -O - -T SECONDS URL`. This is the same with curl: Debian's busybox crashes with that
# call, and Debian's wget retries twenty times.
output=- limit=30
while getopts qO:T:S flag; do
    case $flag in
        O) output=$OPTARG ;;
        T) limit=$OPTARG ;;
        *) ;;
    esac
done
shift $((OPTIND - 1))
exec curl -sSf --connect-timeout "$limit" --max-time "$((limit * 5))" -o "$output" "$1"
