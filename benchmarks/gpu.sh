#!/bin/sh
# What only a GPU can do within minutes: `ATS_DATA=… benchmarks/gpu.sh FOLDER PACKED [seconds]`. Run again with the same
# FOLDER it goes on where it stopped. What is there is packed into PACKED, in pieces of 15 MB:
# `cat PACKED/gpu.tar.* | tar -x` gives it back.
set -eu
folder=${1:?the folder for the results}
packed=${2:?the folder for the packed results}
seconds=${3:-480}
mkdir -p "$folder" "$packed"
folder=$(cd "$folder" && pwd)
packed=$(cd "$packed" && pwd)
cd "$(dirname "$0")/.."
status=0
PYTHONPATH="$PWD" PYTHONUNBUFFERED=1 timeout "$((seconds + 50))" python3 benchmarks/gpu.py "$folder" --budget "$seconds" || status=$?
rm -f "$packed"/gpu.tar.*
tar -C "$folder" -cf - . | split -b 15m - "$packed/gpu.tar."
exit $status
