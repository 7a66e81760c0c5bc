// CKH-128 on the host, fast: AVX-512, AVX2 or plain C++, chosen when the program runs.
//
// Nothing here needs compiler flags for one machine: the vector versions carry their own
// `target` attribute, and `variants()` lists only those that this CPU (and this compiler) can
// run. On other architectures the portable version stands alone; compilers turn its loop into
// 32 x 32 -> 64 multiply-adds (umlal on Arm).
#pragma once

#include "ckh128.h"
#include "shares.hpp"

#include <cstddef>
#include <cstring>
#include <vector>

#if defined(__x86_64__) && defined(__GNUC__)
#define CKH_X86 1
// GCC's own header leaves a register undefined on purpose and then warns of it (bug 105593).
#pragma GCC diagnostic push
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>
#pragma GCC diagnostic pop
#define CKH_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,bmi2")))
#define CKH_AVX2 __attribute__((target("avx2,bmi2")))
#endif

#if defined(__GNUC__)
#define CKH_FORCE_INLINE inline __attribute__((always_inline))
#define CKH_FLATTEN __attribute__((flatten))
#else
#define CKH_FORCE_INLINE inline
#define CKH_FLATTEN
#endif

namespace ckh {

// Level-1 keys of a chunk up to 64 KiB come from a table; beyond, it is computed anew each 64 KiB.
constexpr std::size_t kTableBlocks = 64;
constexpr std::size_t kTableKeys = 4 * kTableBlocks + 6;

// The keys of the four passes side by side, so that vector loads of them are aligned.
struct KeyTables {
    alignas(64) ckh_u32 level0[4][256];
    ckh_u64 level1[kTableKeys];

    KeyTables() {
        for (std::size_t p = 0; p < 4; p++) {
            for (std::size_t i = 0; i < 256; i++) level0[p][i] = ckh_keys[i + 4 * p];
        }
        for (std::size_t j = 0; j < kTableKeys; j++) level1[j] = ckh_level1_key(j);
    }
};
inline const KeyTables key_tables;

// Eight whole bytes as one pair of words. The copy is one load, whatever the alignment.
CKH_FORCE_INLINE ckh_u64 load_pair(const ckh_u8 *bytes) {
    ckh_u64 pair;
    std::memcpy(&pair, bytes, 8);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    pair = __builtin_bswap64(pair);
#endif
    return pair;
}

CKH_FORCE_INLINE void add_pair(ckh_u64 sums[4], ckh_u64 pair, std::size_t i) {
    const ckh_u32 *key = ckh_keys + 2 * i;
    for (std::size_t p = 0; p < 4; p++) {
        sums[p] = ckh_nh(sums[p], static_cast<ckh_u32>(pair), static_cast<ckh_u32>(pair >> 32),
                         key[4 * p], key[4 * p + 1]);
    }
}

// The four sums of one block: bytes, length <= 1024, sums.
using BlockFunction = void (*)(const ckh_u8 *, std::size_t, ckh_u64 *);

static inline void block_portable(const ckh_u8 *block, std::size_t length, ckh_u64 *sums) {
    ckh_u64 local[4] = {0, 0, 0, 0};  // The compiler keeps these in registers; `sums` may alias.
    const std::size_t pairs = length / 8;
    for (std::size_t i = 0; i < pairs; i++) add_pair(local, load_pair(block + 8 * i), i);
    if (length % 8 != 0) add_pair(local, ckh_load_pair(block + 8 * pairs, length % 8), pairs);
    std::memcpy(sums, local, sizeof local);
}

#if defined(CKH_X86)

// One pass over 64 bytes. The multiplication takes the low halves of each 64-bit lane, so the
// second factor is the same register shifted down.
CKH_AVX512 CKH_FORCE_INLINE __m512i pass_avx512(__m512i sum, __m512i data, int p,
                                                std::size_t offset) {
    const auto *keys = reinterpret_cast<const char *>(key_tables.level0[p]) + offset;
    const __m512i keyed = _mm512_add_epi32(data, _mm512_load_si512(keys));
    return _mm512_add_epi64(sum, _mm512_mul_epu32(keyed, _mm512_srli_epi64(keyed, 32)));
}

CKH_AVX512 static inline void block_avx512(const ckh_u8 *block, std::size_t length,
                                           ckh_u64 *sums) {
    __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
    std::size_t offset = 0;
    for (; offset + 64 <= length; offset += 64) {
        const __m512i data = _mm512_loadu_si512(block + offset);
        a = pass_avx512(a, data, 0, offset);
        b = pass_avx512(b, data, 1, offset);
        c = pass_avx512(c, data, 2, offset);
        d = pass_avx512(d, data, 3, offset);
    }
    if (offset < length) {
        // Bytes past the end read as 0, but their keyed product would not be 0: pairs that do
        // not exist keep their old sums.
        const std::size_t rest = length - offset;
        const auto bytes = static_cast<__mmask64>((1ull << rest) - 1);
        const auto pairs = static_cast<__mmask8>((1u << ((rest + 7) / 8)) - 1);
        const __m512i data = _mm512_maskz_loadu_epi8(bytes, block + offset);
        a = _mm512_mask_mov_epi64(a, pairs, pass_avx512(a, data, 0, offset));
        b = _mm512_mask_mov_epi64(b, pairs, pass_avx512(b, data, 1, offset));
        c = _mm512_mask_mov_epi64(c, pairs, pass_avx512(c, data, 2, offset));
        d = _mm512_mask_mov_epi64(d, pairs, pass_avx512(d, data, 3, offset));
    }
    // Transpose and add: four registers of eight lanes become the four sums in one register.
    const __m512i ab = _mm512_add_epi64(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
    const __m512i cd = _mm512_add_epi64(_mm512_unpacklo_epi64(c, d), _mm512_unpackhi_epi64(c, d));
    const __m256i ab4 = _mm256_add_epi64(_mm512_castsi512_si256(ab), _mm512_extracti64x4_epi64(ab, 1));
    const __m256i cd4 = _mm256_add_epi64(_mm512_castsi512_si256(cd), _mm512_extracti64x4_epi64(cd, 1));
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(sums),
                        _mm256_add_epi64(_mm256_permute2x128_si256(ab4, cd4, 0x20),
                                         _mm256_permute2x128_si256(ab4, cd4, 0x31)));
}

CKH_AVX2 CKH_FORCE_INLINE __m256i pass_avx2(__m256i sum, __m256i data, int p, std::size_t offset) {
    const auto *keys = reinterpret_cast<const char *>(key_tables.level0[p]) + offset;
    const __m256i keyed =
        _mm256_add_epi32(data, _mm256_load_si256(reinterpret_cast<const __m256i *>(keys)));
    return _mm256_add_epi64(sum, _mm256_mul_epu32(keyed, _mm256_srli_epi64(keyed, 32)));
}

CKH_AVX2 static inline void block_avx2(const ckh_u8 *block, std::size_t length, ckh_u64 *sums) {
    __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
    std::size_t offset = 0;
    for (; offset + 32 <= length; offset += 32) {
        const __m256i data = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(block + offset));
        a = pass_avx2(a, data, 0, offset);
        b = pass_avx2(b, data, 1, offset);
        c = pass_avx2(c, data, 2, offset);
        d = pass_avx2(d, data, 3, offset);
    }
    const __m256i ab = _mm256_add_epi64(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
    const __m256i cd = _mm256_add_epi64(_mm256_unpacklo_epi64(c, d), _mm256_unpackhi_epi64(c, d));
    alignas(32) ckh_u64 local[4];
    _mm256_store_si256(reinterpret_cast<__m256i *>(local),
                       _mm256_add_epi64(_mm256_permute2x128_si256(ab, cd, 0x20),
                                        _mm256_permute2x128_si256(ab, cd, 0x31)));
    for (; offset + 8 <= length; offset += 8) add_pair(local, load_pair(block + offset), offset / 8);
    if (offset < length) add_pair(local, ckh_load_pair(block + offset, length - offset), offset / 8);
    std::memcpy(sums, local, sizeof local);
}

#endif  // CKH_X86

// A message of more than one block.
template <BlockFunction block_sums>
CKH_FORCE_INLINE ckh128_t digest_long(const ckh_u8 *bytes, std::size_t length) {
    ckh_u64 sums[4], total[4] = {0, 0, 0, 0};
    ckh_u64 later_keys[kTableKeys];
    const ckh_u64 *keys = key_tables.level1;
    for (std::size_t block = 0, start = 0; start < length; block++, start += CKH_BLOCK_BYTES) {
        const std::size_t rest = length - start;
        block_sums(bytes + start, rest < CKH_BLOCK_BYTES ? rest : CKH_BLOCK_BYTES, sums);
        const std::size_t row = block % kTableBlocks;
        if (row == 0 && block != 0) {
            for (std::size_t j = 0; j < kTableKeys; j++) {
                later_keys[j] = ckh_level1_key(4 * block + j);
            }
            keys = later_keys;
        }
        ckh_level1(total, sums, keys + 4 * row);
    }
    return ckh_final(total[0], total[1], total[2], total[3], length, CKH_TAG_LEAF);
}

// Whole chunks of at most one block. Below 256 bytes the finaliser costs as much as the sums, so
// it runs over a batch, in a loop without branches that the compiler turns into vector code.
template <BlockFunction block_sums>
CKH_FORCE_INLINE void digest_short(const ckh_u8 *bytes, std::size_t chunk_bytes, std::size_t count,
                                   ckh_u64 *out) {
    constexpr std::size_t kBatch = 64;
    ckh_u64 sums[kBatch][4] = {};
    ckh_u64 halves[kBatch][2];
    for (std::size_t first = 0; first < count; first += kBatch) {
        const std::size_t size = count - first < kBatch ? count - first : kBatch;
        for (std::size_t i = 0; i < size; i++) {
            block_sums(bytes + (first + i) * chunk_bytes, chunk_bytes, sums[i]);
        }
        // Whole vectors of eight: what is too much is cheaper than a loop for the rest.
        const std::size_t padded = (size + 7) / 8 * 8;
        for (std::size_t i = 0; i < padded; i++) {
            const ckh128_t digest = ckh_final(sums[i][0], sums[i][1], sums[i][2], sums[i][3],
                                              chunk_bytes, CKH_TAG_LEAF);
            halves[i][0] = digest.lo;
            halves[i][1] = digest.hi;
        }
        std::memcpy(out + 2 * first, halves, size * sizeof halves[0]);
    }
}

// Digests of `count` consecutive chunks, lo and hi of each in turn. Every chunk is full but the
// last, which has what is left of `length`; with count = 1 that may be nothing at all.
template <BlockFunction block_sums>
CKH_FORCE_INLINE void digest_chunks(const ckh_u8 *bytes, std::size_t length,
                                    std::size_t chunk_bytes, std::size_t count, ckh_u64 *out) {
    std::size_t done = 0;
    if (chunk_bytes <= CKH_BLOCK_BYTES) {
        done = length / chunk_bytes < count ? length / chunk_bytes : count;
        digest_short<block_sums>(bytes, chunk_bytes, done, out);
    }
    for (; done < count; done++) {
        const std::size_t rest = length - done * chunk_bytes;
        const std::size_t size = rest < chunk_bytes ? rest : chunk_bytes;
        const ckh_u8 *chunk = size == 0 ? nullptr : bytes + done * chunk_bytes;
        ckh128_t digest;
        if (size > CKH_BLOCK_BYTES) {
            digest = digest_long<block_sums>(chunk, size);
        } else {
            ckh_u64 sums[4];
            block_sums(chunk, size, sums);
            digest = ckh_final(sums[0], sums[1], sums[2], sums[3], size, CKH_TAG_LEAF);
        }
        out[2 * done] = digest.lo;
        out[2 * done + 1] = digest.hi;
    }
}

using ChunksFunction = void (*)(const ckh_u8 *, std::size_t, std::size_t, std::size_t, ckh_u64 *);

// `flatten` pulls the generic code into a function with the vector target, which is what lets
// the compiler use that target's registers for all of it.
CKH_FLATTEN static void digest_chunks_portable(const ckh_u8 *bytes, std::size_t length,
                                               std::size_t chunk_bytes, std::size_t count,
                                               ckh_u64 *out) {
    digest_chunks<block_portable>(bytes, length, chunk_bytes, count, out);
}

#if defined(CKH_X86)
CKH_AVX512 CKH_FLATTEN static void digest_chunks_avx512(const ckh_u8 *bytes, std::size_t length,
                                                        std::size_t chunk_bytes,
                                                        std::size_t count, ckh_u64 *out) {
    digest_chunks<block_avx512>(bytes, length, chunk_bytes, count, out);
}

CKH_AVX2 CKH_FLATTEN static void digest_chunks_avx2(const ckh_u8 *bytes, std::size_t length,
                                                    std::size_t chunk_bytes, std::size_t count,
                                                    ckh_u64 *out) {
    digest_chunks<block_avx2>(bytes, length, chunk_bytes, count, out);
}
#endif

struct Variant {
    const char *name;
    ChunksFunction digest_chunks;
};

// What this CPU can run, fastest first; the portable version is always there.
static inline std::vector<Variant> variants() {
    std::vector<Variant> found;
#if defined(CKH_X86)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2");
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    if (avx2 && avx512) found.push_back({"avx512", digest_chunks_avx512});
    if (avx2) found.push_back({"avx2", digest_chunks_avx2});
#endif
    found.push_back({"scalar", digest_chunks_portable});
    return found;
}

// The same on several threads: one core reads less than the memory can deliver.
static inline void digest_chunks_parallel(ChunksFunction digest, const ckh_u8 *bytes,
                                          std::size_t length, std::size_t chunk_bytes,
                                          std::size_t count, ckh_u64 *out, std::size_t threads) {
    in_shares(count, threads, [=](std::size_t first, std::size_t end) {
        const std::size_t start = first * chunk_bytes;
        const std::size_t stop = end * chunk_bytes < length ? end * chunk_bytes : length;
        digest(bytes + start, stop - start, chunk_bytes, end - first, out + 2 * first);
    });
}

}  // namespace ckh
