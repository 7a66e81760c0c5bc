// Runs the scan, the capture, the history, repeats and deltas on small inputs of many shapes, in buffers of
// exactly the right size, so that the sanitizers see every read or write too far.
// test_native_checks.py builds and runs it; what the results should be is tested from Python.
#include "capture.hpp"
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
constexpr std::size_t kNone = static_cast<std::size_t>(-1);

// Cells of one scan; every column as long as the region has cells, not longer.
struct Found {
    Column<ckh_u64> chunks, index, digest, pattern;
    Column<ckh_u8> kind;
    std::size_t count = 0;
    std::atomic<std::size_t> torn{kNone};

    // With `given`, digests of the chunks that were computed before.
    Found(const Column<ckh_u8> &data, std::size_t chunk, std::size_t cell, const Found *old,
          const ckh::Variant &variant, std::size_t threads, const Found *given = nullptr) {
        const std::size_t cells = (data.size() + cell - 1) / cell;
        if (given) chunks = given->chunks;
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
            {index.data(), digest.data(), kind.data(), pattern.data()},
            given != nullptr,
            &torn};
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
        Found told(later, chunk, cell, &first, variant, threads, &second);
        wrong += told.count != second.count || told.torn != kNone || told.index != second.index;
        if (length > 0) {
            later[noise() % length] ^= 2;
            Found torn(later, chunk, cell, nullptr, variant, threads, &second);
            wrong += torn.torn == kNone;
        }
        later.resize(length / 2);
        Found shorter(later, chunk, cell, &first, variant, threads);
        wrong += check_history(first, cell, length) + check_history(second, cell, length);
        wrong += check_history(shorter, cell, length / 2);
    }
    return wrong;
}

// Captures three regions, one of them changed in one byte; everything ends where memory does.
int check_capture(const ckh::Variant &variant, std::size_t chunk, std::size_t grain,
                  std::size_t length, std::size_t threads) {
    const std::size_t sizes[3] = {length, length / 3, length + 1};
    Column<Column<ckh_u8>> data;
    Column<ckh_u64> rows;
    std::size_t arena_bytes = 0, chunks = 0;
    for (std::size_t size : sizes) {
        data.emplace_back(size);
        for (ckh_u8 &byte : data.back()) byte = static_cast<ckh_u8>(noise());
        const std::size_t count = (size + chunk - 1) / chunk;
        const ckh_u64 row[] = {reinterpret_cast<std::uintptr_t>(data.back().data()), size,
                               arena_bytes, chunks, count, grain, ckh::kCaptureDigest};
        rows.insert(rows.end(), row, row + ckh::kCaptureColumns);
        arena_bytes += size;
        chunks += count;
    }
    Column<std::size_t> before(4, 0);
    for (std::size_t i = 0; i < 3; i++) {
        const ckh::CaptureRow row = ckh::CaptureRow::at(rows.data(), i);
        const std::size_t step = row.unit(chunk);
        before[i + 1] = before[i] + (row.chunks(chunk) + step - 1) / step;
    }
    Column<ckh_u8> arena(arena_bytes), held(chunks);
    Column<ckh_u64> parent(2 * chunks), digests(2 * chunks);
    int wrong = 0;
    for (int round = 0; round < 3; round++) {
        if (round == 2) data[2][noise() % data[2].size()] ^= 1;
        ckh::Capture work{rows.data(), 3, chunk, arena.data(), parent.data(), digests.data(),
                          held.data(), arena_bytes, variant.digest_chunks, before.data()};
        ckh::capture_regions(work, threads);
        wrong += work.full || (round == 0 && work.taken != arena_bytes);
        wrong += round == 1 && work.taken != 0;
        wrong += round == 2 && (work.taken < 1 || work.taken > grain * chunk);
        parent = digests;
        std::size_t at = 0;
        for (const Column<ckh_u8> &one : data) {
            for (std::size_t i = 0; i < one.size(); i++) wrong += arena[at + i] != one[i];
            at += one.size();
        }
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
    for (const ckh::Variant &variant : ckh::variants()) {
        for (std::size_t length = 0; length <= 600; length += 13) {
            wrong += check_capture(variant, 64, 1 + length % 3, length, 1 + length % 2);
        }
        wrong += check_capture(variant, 4096, 4, 1000000, 3);
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
