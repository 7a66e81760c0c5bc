#!/usr/bin/env bash
# Build what exercises the C++ headers with the sanitizers for addresses and undefined behaviour,
# and run it; any report ends it. One driver hands nonsense to everything that reads a checkpoint
# back, with a fixed seed; CASES says how much of it.
set -euo pipefail
cd "$(dirname "$0")/../.."

compiler=$(command -v g++ || command -v clang++ || true)
if [ -z "$compiler" ]; then
    echo "sanitize: skipped, since there is no g++ or clang++ here"
    exit 0
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
flags=(-std=c++17 -O1 -g -pthread -Wall -Wextra -Werror -Ickptflow/native
       -fsanitize=address,undefined -fno-sanitize-recover=all)

echo 'int main() { return 0; }' > "$folder/probe.cpp"
if ! "$compiler" "${flags[@]}" "$folder/probe.cpp" -o "$folder/probe" 2> "$folder/log"; then
    echo "sanitize: skipped, since $compiler has no sanitizers here:"
    cat "$folder/log"
    exit 0
fi
for source in tests/native/decoders.cpp tests/unit/*_check.cpp; do
    name=$(basename "$source" .cpp)
    "$compiler" "${flags[@]}" "$source" -o "$folder/$name"
    echo "== $name"
    if [ "$name" = decoders ]; then
        "$folder/$name" "${CASES:-200000}" 1
    else
        "$folder/$name" > "$folder/log" || { cat "$folder/log"; exit 1; }
        tail -n 1 "$folder/log"
    fi
done
