// Runs the scan, the history, repeats and deltas on small inputs of many shapes, in buffers of
// exactly the right size, so that the sanitizers see every read or write too far.
// test_native_checks.py builds and runs it; what the results should be is tested from Python.
#include "delta.hpp"
#include "history.hpp"
#include "repeats.hpp"
#include "scan.hpp"

#include <cstdio>

namespace {

ckh_u64 state = 1;

ckh_u64 noise() {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return state >> 33;
}

template <typename T>
using Column = std::vector<T>;

// Cells of one scan; every column as long as the region has cells, not longer.
struct Found {
    Column<ckh_u64> chunks, index, digest, pattern;
    Column<ckh_u8> kind;
    std::size_t count = 0;

    Found(const Column<ckh_u8> &data, std::size_t chunk, std::size_t cell, const Found *old,
          const ckh::Variant &variant, std::size_t threads) {
        const std::size_t cells = (data.size() + cell - 1) / cell;
        chunks.resize((data.size() + chunk - 1) / chunk * 2);
        index.resize(cells);
        digest.resize(2 * cells);
        pattern.resize(cells);
        kind.resize(cells);
        const ckh::Digests none{nullptr, 0};
        const ckh::Scan scan{
            {data.data(), data.size(), chunk},
            cell,
            old ? ckh::Digests{old->chunks.data(), old->chunks.size() / 2} : none,
            old ? ckh::Digests{old->digest.data(), old->digest.size() / 2} : none,
            variant.digest_chunks,
            chunks.data(),
            {index.data(), digest.data(), kind.data(), pattern.data()}};
        count = ckh::scan_region(scan, threads);
    }
};

// Numbers what was found, in a log and a table just large enough; then joins it to runs.
int check_history(Found &found, std::size_t cell, std::size_t length) {
    Column<ckh_u64> rows(2 * found.count), ids(found.count), slots(16);
    ckh::Log log{rows.data(), 0};
    std::size_t done = 0;
    while (true) {
        const std::size_t rest = found.count - done;
        done += ckh::find_or_add({found.digest.data() + 2 * done, rest}, found.kind.data() + done,
                                 ids.data() + done, log, {slots.data(), slots.size()}, 7);
        if (done == found.count) break;
        slots.assign(2 * slots.size(), 0);
        ckh::Table(slots.data(), slots.size()).fill({rows.data(), log.count});
    }
    int wrong = 0;
    for (std::size_t i = 0; i < found.count; i++) {
        if (found.kind[i] == ckh::kFill) continue;
        const ckh_u64 *row = &rows[2 * (ids[i] - 7)];
        wrong += row[0] != found.digest[2 * i] || row[1] != found.digest[2 * i + 1];
    }
    Column<ckh_u64> start(found.count), run_length(found.count), ref(found.count);
    Column<ckh_u8> kind(found.count);
    const std::size_t runs = ckh::collect_runs(
        {found.index.data(), found.kind.data(), found.pattern.data(), ids.data(), found.count},
        cell, length, {kind.data(), start.data(), run_length.data(), ref.data()});
    for (std::size_t i = 0; i < runs; i++) wrong += start[i] + run_length[i] > length;
    return wrong;
}

int check_scan(const ckh::Variant &variant, std::size_t chunk, std::size_t cell,
               std::size_t length) {
    Column<ckh_u8> data(length);
    for (std::size_t i = 0; i < length; i++) {
        data[i] = i / chunk % 3 == 1 ? 5 : static_cast<ckh_u8>(noise());
    }
    int wrong = 0;
    for (std::size_t threads = 1; threads <= 3; threads++) {
        Found first(data, chunk, cell, nullptr, variant, threads);
        wrong += first.count != first.kind.size();
        Column<ckh_u8> later(data);
        if (length > 0) later[noise() % length] ^= 1;
        Found second(later, chunk, cell, &first, variant, threads);
        wrong += second.count != (length > 0);
        later.resize(length / 2);
        Found shorter(later, chunk, cell, &first, variant, threads);
        wrong += check_history(first, cell, length) + check_history(second, cell, length);
        wrong += check_history(shorter, cell, length / 2);
    }
    return wrong;
}

int check_repeats(std::size_t count) {
    Column<ckh_u64> length(count), source(count);
    Column<ckh_u32> pack(count);
    for (std::size_t i = 0; i < count; i++) {
        length[i] = 8;
        source[i] = noise() % 2;
        pack[i] = static_cast<ckh_u32>(noise() % 2);
    }
    Column<std::int64_t> row(count / 3), period(count / 3), rows(count / 3);
    const std::size_t found =
        ckh::find_repeats({length.data(), source.data(), pack.data(), count},
                          {row.data(), period.data(), rows.data()});
    return found > count / 3;
}

int check_delta(std::size_t length, long op, long word) {
    Column<ckh_u8> old(length), fresh(length), stored(length);
    for (std::size_t i = 0; i < length; i++) {
        old[i] = static_cast<ckh_u8>(noise());
        fresh[i] = static_cast<ckh_u8>(noise());
    }
    ckh::delta_maker(op, word)(fresh.data(), old.data(), stored.data(), length);
    ckh::delta_applier(op, word)(old.data(), stored.data(), old.data(), length);
    return old != fresh;
}

}  // namespace

int main() {
    int wrong = 0;
    for (const ckh::Variant &variant : ckh::variants()) {
        for (std::size_t length = 0; length <= 200; length++) {
            wrong += check_scan(variant, 64, 16, length);
            wrong += check_scan(variant, 64, 64, length);
        }
        for (std::size_t length = 12200; length <= 12300; length += 7) {
            wrong += check_scan(variant, 4096, 128, length);
            wrong += check_scan(variant, 2080, 1040, length);
        }
    }
    for (std::size_t count = 0; count < 200; count++) wrong += check_repeats(count);
    for (std::size_t length = 0; length < 100; length++) {
        for (long op = 0; op <= 1; op++) {
            for (long word = 1; word <= 8; word *= 2) wrong += check_delta(length, op, word);
        }
    }
    std::printf("%d wrong\n", wrong);
    return wrong != 0;
}
