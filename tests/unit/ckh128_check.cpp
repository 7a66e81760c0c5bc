// Compares the fast host versions with the plain one, in buffers of exactly the right size, so
// that the sanitizers see every read or write too far. test_digest.py builds and runs it.
#include "ckh128_cpu.hpp"
#include "diff.hpp"
#include "ranges.hpp"

#include <cstdio>
#include <memory>

namespace {

// `size` bytes of noise at an address that is `offset` beyond an aligned one.
struct Message {
    std::unique_ptr<ckh_u8[]> memory;
    ckh_u8 *bytes;
    std::size_t size;

    Message(std::size_t size, std::size_t offset)
        : memory(new ckh_u8[size + offset]), bytes(memory.get() + offset), size(size) {
        ckh_u64 state = size * 64 + offset;
        for (std::size_t i = 0; i < size; i++) {
            state = state * 6364136223846793005ull + 1442695040888963407ull;
            bytes[i] = static_cast<ckh_u8>(state >> 56);
        }
    }
};

bool equal(ckh128_t expected, const ckh_u64 *found) {
    return expected.lo == found[0] && expected.hi == found[1];
}

int check_whole(const ckh::Variant &variant, std::size_t size) {
    const Message message(size, size % 13);
    const std::unique_ptr<ckh_u64[]> out(new ckh_u64[2]);
    const std::size_t chunk_bytes = size < 16 ? 16 : (size + 7) / 8 * 8;
    variant.digest_chunks(size ? message.bytes : nullptr, size, chunk_bytes, 1, out.get());
    return !equal(ckh128_plain(message.bytes, size), out.get());
}

int check_chunks(const ckh::Variant &variant, std::size_t chunk_bytes, std::size_t size) {
    const Message message(size, chunk_bytes % 7);
    const std::size_t count = (size + chunk_bytes - 1) / chunk_bytes;
    const std::unique_ptr<ckh_u64[]> out(new ckh_u64[2 * count]);
    int wrong = 0;
    for (std::size_t threads = 1; threads <= 3; threads++) {
        ckh::digest_chunks_parallel(variant.digest_chunks, message.bytes, size, chunk_bytes, count,
                                    out.get(), threads);
        for (std::size_t i = 0; i < count; i++) {
            const std::size_t start = i * chunk_bytes;
            const std::size_t length = size - start < chunk_bytes ? size - start : chunk_bytes;
            wrong += !equal(ckh128_plain(message.bytes + start, length), out.get() + 2 * i);
        }
    }
    return wrong;
}

// Fills a region by ranges, whose digests are then known, and copies it.
int check_ranges(std::size_t chunk_bytes, std::size_t tail) {
    const std::size_t size = 6 * chunk_bytes + tail;
    const std::size_t count = 6 + (tail != 0);
    Message region(size, 5);
    const ckh_u64 start[] = {0, 3 * chunk_bytes}, length[] = {2 * chunk_bytes, chunk_bytes};
    const ckh_u64 pattern[] = {0, 0x0102030405060708ull};
    ckh::fill_ranges(region.bytes, start, length, pattern, 2);
    int wrong = 0;
    for (std::size_t i = 0; i < count; i++) {
        const std::size_t rest = size - i * chunk_bytes;
        const std::size_t bytes = rest < chunk_bytes ? rest : chunk_bytes;
        const bool is_fill = ckh::is_fill(region.bytes + i * chunk_bytes, bytes);
        // Eight bytes repeat whatever they are.
        wrong += is_fill != (i < 2 || i == 3 || bytes == 8);
    }

    std::unique_ptr<ckh_u64[]> digests(new ckh_u64[2 * count]);
    ckh::variants()[0].digest_chunks(region.bytes, size, chunk_bytes, count, digests.get());
    const ckh::Digests ours{digests.get(), count};
    wrong += !ours.same(0, {digests.get() + 2, count - 1}) || ours.same(1, {digests.get() + 2, 2});
    const std::unique_ptr<ckh_u64[]> parents(new ckh_u64[2 * ((count + 1) / 2)]);
    ckh::digest_parents(ours, {nullptr, 0}, {nullptr, 0}, parents.get());
    wrong += !equal(ckh_node(ours.at(0), ours.at(1)), parents.get());

    Message copy(size, 3);
    const ckh_u64 whole[] = {0, 0}, sizes[] = {size, 0};
    ckh::copy_ranges(region.bytes, copy.bytes, whole, whole, sizes, 2);
    wrong += std::memcmp(copy.bytes, region.bytes, size) != 0;
    const ckh_u64 beyond[] = {~0ull}, one[] = {1};
    return wrong + ckh::ranges_fit(beyond, one, 1, size) + !ckh::ranges_fit(whole, sizes, 2, size);
}

}  // namespace

int main() {
    int wrong = 0;
    for (const ckh::Variant &variant : ckh::variants()) {
        for (std::size_t size = 0; size <= 2100; size++) wrong += check_whole(variant, size);
        for (std::size_t size : {65536, 65537, 66561, 140001}) wrong += check_whole(variant, size);
        for (std::size_t chunk_bytes : {16, 24, 48, 1024, 1040, 4096}) {
            for (std::size_t tail : {0, 1, 8, 15}) {
                wrong += check_chunks(variant, chunk_bytes, 67 * chunk_bytes + tail);
            }
        }
    }
    for (std::size_t chunk_bytes : {16, 24, 1040}) {
        for (std::size_t tail : {0, 1, 8, 9}) wrong += check_ranges(chunk_bytes, tail);
    }
    ckh::fill_ranges(nullptr, nullptr, nullptr, nullptr, 0);
    std::printf("%zu variants, %d wrong\n", ckh::variants().size(), wrong);
    return wrong != 0;
}
