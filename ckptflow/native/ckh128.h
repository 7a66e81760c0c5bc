// CKH-128: the digest of a chunk, 128 bits, and the digest of two digests.
//
// One header for every compiler that needs it: host C++ (g++, clang++), nvcc and NVRTC.
// It holds the definition and a plain implementation that reads like it; the fast host
// versions in ckh128_cpu.hpp, the kernels for the GPU, and the NumPy and numba versions
// must return the same bits. tests/unit/test_digest.py compares all of them with an oracle
// written from the definition alone.
//
// Definition. A message has `length` bytes. Words are little-endian 32-bit numbers, two of
// them make a pair, and bytes missing from the last pair count as 0. All sums are taken
// modulo 2^64, key additions modulo 2^32.
//
//   Level 0  Split the message into blocks of 1024 bytes; the last may be shorter. A block
//            with words w[0], w[1], ... has four sums, one for each p in 0..3, over its pairs i:
//              S[p] = sum of (w[2i] + K[2i + 4p]) * (w[2i+1] + K[2i+1 + 4p])
//            This is NH, the core of UMAC, with the keys shifted by 16 bytes per pass.
//   Level 1  Only if length > 1024. The sums of all blocks in order, S[0]..S[3] of block 0, then
//            of block 1, ..., are the pairs of a second NH: pair j is (low half, high half) of
//            the j-th sum, its key L[j] is used the same way:
//              T[p] = sum of (low[j] + low half of L[j + 2p]) * (high[j] + high half of L[j + 2p])
//   Final    S (or T) and length are mixed to 128 bits by ckh_final.
//   Node     The digest of two digests is ckh_final of their four halves, length 0, own tag.
//
//   K        268 words: low and high halves of the splitmix64 stream that starts at the first
//            64 bits of the fraction of pi (ckh128_keys.inc).
//   L        the splitmix64 stream that starts at the next 64 bits (ckh_level1_key).
//
// Why this one. Sums commute, so every assignment of words to threads or vector lanes gives
// the same digest. The only heavy operation is 32 x 32 -> 64 bit multiply-add: IMAD.WIDE on
// NVIDIA, vpmuludq on x86, umlal on Arm. Two different messages of equal length, chosen
// without regard to the keys, agree in all four sums of a block with probability <= 2^-128,
// so no pattern in natural data can be systematically bad.
//
// What it is not. It is no cryptographic hash: who knows the keys can construct collisions.
#ifndef CKH128_H
#define CKH128_H

#if defined(__CUDACC_RTC__)
typedef unsigned char ckh_u8;
typedef unsigned int ckh_u32;
#else
#include <stddef.h>
#include <stdint.h>
#include <string.h>
typedef uint8_t ckh_u8;
typedef uint32_t ckh_u32;
#endif
typedef unsigned long long ckh_u64;  // uint64_t is `unsigned long` on some hosts, never on the GPU

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define CKH_INLINE __host__ __device__ __forceinline__
#elif defined(_MSC_VER)
#define CKH_INLINE static __forceinline
#else
#define CKH_INLINE static inline __attribute__((always_inline))
#endif

#define CKH_BLOCK_BYTES 1024u  // of one level-0 block
#define CKH_KEY_WORDS 268u     // 256 words of a block, and 3 shifts by 4 words
#define CKH_TAG_LEAF 0x6C656166ull
#define CKH_TAG_NODE 0x6E6F6465ull

struct alignas(16) ckh128_t {
    ckh_u64 lo, hi;
};

CKH_INLINE ckh_u64 ckh_rotate_left(ckh_u64 x, int bits) {
    return (x << bits) | (x >> (64 - bits));
}

// Adds one pair of words to one sum.
CKH_INLINE ckh_u64 ckh_nh(ckh_u64 sum, ckh_u32 x, ckh_u32 y, ckh_u32 key_x, ckh_u32 key_y) {
    return sum + (ckh_u64)(ckh_u32)(x + key_x) * (ckh_u32)(y + key_y);
}

// The same, with the pair and its key as one 64-bit number each.
CKH_INLINE ckh_u64 ckh_nh_pair(ckh_u64 sum, ckh_u64 pair, ckh_u64 key) {
    return ckh_nh(sum, (ckh_u32)pair, (ckh_u32)(pair >> 32), (ckh_u32)key, (ckh_u32)(key >> 32));
}

// Mixes four sums and a length to a digest: eight odd multiplications and xor-shifts.
CKH_INLINE ckh128_t ckh_final(ckh_u64 w0, ckh_u64 w1, ckh_u64 w2, ckh_u64 w3, ckh_u64 length,
                              ckh_u64 tag) {
    const ckh_u64 mark = length * 0x9E3779B97F4A7C15ull + tag;
    w0 += mark;
    w2 ^= mark;

    w0 = (w0 ^ w0 >> 32) * 0x9FB21C651E98DF25ull;
    w1 = (w1 ^ w1 >> 32) * 0xC2B2AE3D27D4EB4Full;
    w2 = (w2 ^ w2 >> 32) * 0xD6E8FEB86659FD93ull;
    w3 = (w3 ^ w3 >> 32) * 0xA0761D6478BD642Full;
    w0 ^= w0 >> 29;
    w1 ^= w1 >> 29;
    w2 ^= w2 >> 29;
    w3 ^= w3 >> 29;

    ckh_u64 lo = w0 + ckh_rotate_left(w1, 32);
    ckh_u64 hi = w2 + ckh_rotate_left(w3, 32);
    lo = (lo ^ lo >> 32) * 0xE7037ED1A0B428DBull;
    hi = (hi ^ hi >> 32) * 0x8EBC6AF09C88C6E3ull;

    // Each half must depend on all four sums, so they are crossed before the last round.
    lo += ckh_rotate_left(hi, 32);
    hi += ckh_rotate_left(lo, 32);
    lo = (lo ^ lo >> 29) * 0x589965CC75374CC3ull;
    hi = (hi ^ hi >> 29) * 0x1D8E4E27C47D124Full;
    ckh128_t digest;
    digest.lo = lo ^ lo >> 32;
    digest.hi = hi ^ hi >> 32;
    return digest;
}

// The digest of a Merkle node. The tag keeps nodes and leaves apart.
CKH_INLINE ckh128_t ckh_node(ckh128_t left, ckh128_t right) {
    return ckh_final(left.lo, left.hi, right.lo, right.hi, 0, CKH_TAG_NODE);
}

// L[j]: low half for the first word of pair j, high half for the second.
CKH_INLINE ckh_u64 ckh_level1_key(ckh_u64 j) {
    ckh_u64 z = 0x13198A2E03707344ull + 0x9E3779B97F4A7C15ull * (j + 1);
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ z >> 27) * 0x94D049BB133111EBull;
    return z ^ z >> 31;
}

// Adds the sums of one block to the four level-1 sums; `keys` are L[4 * block] and on, ten of them.
CKH_INLINE void ckh_level1(ckh_u64 total[4], const ckh_u64 sums[4], const ckh_u64 *keys) {
    for (int q = 0; q < 4; q++) {
        for (int p = 0; p < 4; p++) {
            total[p] = ckh_nh_pair(total[p], sums[q], keys[q + 2 * p]);
        }
    }
}

// ---- The definition as code: any length, any alignment, any byte order --------------------
#if !defined(__CUDACC_RTC__)

static const ckh_u32 ckh_keys[CKH_KEY_WORDS] = {
#include "ckh128_keys.inc"
};

// Up to eight bytes as one pair of words; missing ones are 0.
static inline ckh_u64 ckh_load_pair(const ckh_u8 *bytes, size_t count) {
    ckh_u64 pair = 0;
    for (size_t i = 0; i < count && i < 8; i++) {
        pair |= (ckh_u64)bytes[i] << (8 * i);
    }
    return pair;
}

static inline void ckh_block_plain(const ckh_u8 *block, size_t length, ckh_u64 sums[4]) {
    sums[0] = sums[1] = sums[2] = sums[3] = 0;
    for (size_t i = 0; 8 * i < length; i++) {
        const ckh_u64 pair = ckh_load_pair(block + 8 * i, length - 8 * i);
        for (size_t p = 0; p < 4; p++) {
            const ckh_u32 *key = ckh_keys + 2 * i + 4 * p;
            sums[p] = ckh_nh(sums[p], (ckh_u32)pair, (ckh_u32)(pair >> 32), key[0], key[1]);
        }
    }
}

static inline ckh128_t ckh128_plain(const void *message, size_t length) {
    const ckh_u8 *bytes = (const ckh_u8 *)message;
    ckh_u64 sums[4];
    if (length <= CKH_BLOCK_BYTES) {
        ckh_block_plain(bytes, length, sums);
        return ckh_final(sums[0], sums[1], sums[2], sums[3], length, CKH_TAG_LEAF);
    }
    ckh_u64 total[4] = {0, 0, 0, 0};
    for (size_t block = 0; block * CKH_BLOCK_BYTES < length; block++) {
        const size_t start = block * CKH_BLOCK_BYTES;
        const size_t rest = length - start;
        ckh_block_plain(bytes + start, rest < CKH_BLOCK_BYTES ? rest : CKH_BLOCK_BYTES, sums);
        ckh_u64 keys[10];
        for (size_t j = 0; j < 10; j++) {
            keys[j] = ckh_level1_key(4 * block + j);
        }
        ckh_level1(total, sums, keys);
    }
    return ckh_final(total[0], total[1], total[2], total[3], length, CKH_TAG_LEAF);
}

#endif  // !__CUDACC_RTC__
#endif  // CKH128_H
