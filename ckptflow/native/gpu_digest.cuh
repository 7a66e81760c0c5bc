// CKH-128 on the GPU: many equal messages by groups of lanes, or any one message by a warp.
//
// kernels.cu includes this; ckh128.h has the definition. Sums commute, so lanes of a warp share
// a message: each adds up its own pairs, and shuffles add up the lanes. Everything stays in
// registers except the keys, which are in shared memory.
#pragma once

#include "ckh128.h"

#define CK_ALL_LANES 0xffffffffu
#define CK_WARP 32u

// Messages in flight in each group of lanes. Keys are read once for all of them.
#ifndef CK_ILP
#define CK_ILP 2
#endif

static constexpr unsigned CK_KEY_UNITS = CKH_KEY_WORDS / 4;  // of 16 bytes
static constexpr int CK_UNROLL = 4;

// How lanes share messages of SIZE bytes, a multiple of 16: at least one 32-byte sector per load,
// and a whole line of 128 bytes where messages are long enough.
template <unsigned SIZE>
struct ck_shape {
    static constexpr unsigned lanes = SIZE >= 1024 ? 8 : SIZE >= 512 ? 4 : SIZE >= 64 ? 2 : 1;
    static constexpr unsigned blocks = (SIZE + CKH_BLOCK_BYTES - 1) / CKH_BLOCK_BYTES;
    static constexpr unsigned block_units = (SIZE < CKH_BLOCK_BYTES ? SIZE : CKH_BLOCK_BYTES) / 16;
    static constexpr bool blocks_are_equal = SIZE <= CKH_BLOCK_BYTES || SIZE % CKH_BLOCK_BYTES == 0;
    static constexpr bool lanes_are_equal = blocks_are_equal && block_units % lanes == 0;
    static constexpr unsigned level1_keys = blocks > 1 ? 4 * blocks + 6 : 1;

    static __device__ __forceinline__ unsigned units_in(unsigned block) {
        const unsigned rest = SIZE / 16 - block * (CKH_BLOCK_BYTES / 16);
        return blocks_are_equal || rest > block_units ? block_units : rest;
    }
};

// One message that a group of lanes reads.
struct ck_message {
    const uint4 *units;  // null: none, but the lane takes part in shuffles
    uint4 first;         // its first unit, to find repeats of the first eight bytes
    unsigned unlike;     // not 0: some eight bytes are not the first ones
};

// All threads of a block put the keys into shared memory. A barrier has to follow.
__device__ __forceinline__ void ck_load_keys(uint4 *shared, const uint4 *keys) {
    for (unsigned i = threadIdx.x; i < CK_KEY_UNITS; i += blockDim.x) shared[i] = keys[i];
}

__device__ __forceinline__ void ck_make_level1_keys(ckh_u64 *shared, unsigned count) {
    for (unsigned i = threadIdx.x; i < count; i += blockDim.x) shared[i] = ckh_level1_key(i);
}

// Adds a unit of 16 bytes to the four sums.
__device__ __forceinline__ void ck_add_unit(ckh_u64 sums[4], uint4 unit, const uint4 *keys) {
#pragma unroll
    for (int p = 0; p < 4; p++) {
        const uint4 key = keys[p];
        sums[p] = ckh_nh(sums[p], unit.x, unit.y, key.x, key.y);
        sums[p] = ckh_nh(sums[p], unit.z, unit.w, key.z, key.w);
    }
}

__device__ __forceinline__ ckh_u64 ck_from_lane_xor(ckh_u64 value, int mask) {
    return __shfl_xor_sync(CK_ALL_LANES, value, mask);
}

// Ends a level-0 block. Each lane keeps the sum of one pass over all lanes of its group, which
// takes four shuffles instead of twelve, and adds it to the level-1 sums.
template <unsigned LANES>
__device__ __forceinline__ void ck_end_block(ckh_u64 total[4], const ckh_u64 sums[4],
                                             const ckh_u64 *level1) {
    const unsigned lane = threadIdx.x % LANES;
    const bool odd = lane & 1, upper = lane & 2;
    const unsigned pass = 2 * (lane & 1) + (lane >> 1 & 1);
    ckh_u64 low = odd ? sums[2] : sums[0], high = odd ? sums[3] : sums[1];
    low += ck_from_lane_xor(odd ? sums[0] : sums[2], 1);
    high += ck_from_lane_xor(odd ? sums[1] : sums[3], 1);
    ckh_u64 sum = upper ? high : low;
    sum += ck_from_lane_xor(upper ? low : high, 2);
    if (LANES == 8) sum += ck_from_lane_xor(sum, 4);
#pragma unroll
    for (int p = 0; p < 4; p++) total[p] = ckh_nh_pair(total[p], sum, level1[pass + 2 * p]);
}

// Digests CK_ILP messages of SIZE bytes by each group of lanes; every lane gets them all.
// Whole warps call this together. FILL: also look for repeats of the first eight bytes.
template <unsigned SIZE, bool FILL>
__device__ __forceinline__ void ck_digest_lanes(ck_message message[CK_ILP], const uint4 *keys,
                                                const ckh_u64 *level1, ckh128_t digest[CK_ILP]) {
    using shape = ck_shape<SIZE>;
    const unsigned lane = threadIdx.x % shape::lanes;
    ckh_u64 total[CK_ILP][4], sums[CK_ILP][4];
#pragma unroll
    for (int j = 0; j < CK_ILP; j++) {
        total[j][0] = total[j][1] = total[j][2] = total[j][3] = 0;
        if (FILL) {
            message[j].unlike = 0;
            message[j].first = message[j].units ? message[j].units[0] : make_uint4(0, 0, 0, 0);
        }
    }
#pragma unroll 1
    for (unsigned block = 0; block < shape::blocks; block++) {
#pragma unroll
        for (int j = 0; j < CK_ILP; j++) sums[j][0] = sums[j][1] = sums[j][2] = sums[j][3] = 0;
        const unsigned units = shape::units_in(block);
#pragma unroll CK_UNROLL
        for (unsigned i = 0; i < (units + shape::lanes - 1) / shape::lanes; i++) {
            const unsigned u = i * shape::lanes + lane;
            if (!shape::lanes_are_equal && u >= units) break;
            uint4 unit[CK_ILP];
#pragma unroll
            for (int j = 0; j < CK_ILP; j++) {
                const unsigned at = block * (CKH_BLOCK_BYTES / 16) + u;
                unit[j] = message[j].units ? __ldcs(message[j].units + at) : make_uint4(0, 0, 0, 0);
            }
#pragma unroll
            for (int j = 0; j < CK_ILP; j++) {
                ck_add_unit(sums[j], unit[j], keys + u);
                if (FILL) {
                    const uint4 first = message[j].first;
                    message[j].unlike |= (unit[j].x ^ first.x) | (unit[j].y ^ first.y) |
                                         (unit[j].z ^ first.x) | (unit[j].w ^ first.y);
                }
            }
        }
#pragma unroll
        for (int j = 0; j < CK_ILP; j++) {
            if constexpr (shape::blocks > 1) {
                ck_end_block<shape::lanes>(total[j], sums[j], level1 + 4 * block);
            }
        }
    }
#pragma unroll
    for (int j = 0; j < CK_ILP; j++) {
        // Level 1 has summed lanes 4 to 7 into 0 to 3 and the other way round already.
        constexpr int first_mask = shape::blocks > 1 ? 2 : shape::lanes / 2;
        ckh_u64 sum[4];
#pragma unroll
        for (int p = 0; p < 4; p++) {
            sum[p] = shape::blocks > 1 ? total[j][p] : sums[j][p];
#pragma unroll
            for (int mask = first_mask; mask; mask >>= 1) sum[p] += ck_from_lane_xor(sum[p], mask);
        }
        if (FILL) {
#pragma unroll
            for (int mask = shape::lanes / 2; mask; mask >>= 1) {
                message[j].unlike |= __shfl_xor_sync(CK_ALL_LANES, message[j].unlike, mask);
            }
        }
        digest[j] = ckh_final(sum[0], sum[1], sum[2], sum[3], SIZE, CKH_TAG_LEAF);
    }
}

// ---- Any length, any alignment --------------------------------------------------------------

// Up to eight bytes; missing ones are 0. Reads nothing beyond them.
__device__ __forceinline__ ckh_u64 ck_load_pair(const ckh_u8 *bytes, ckh_u64 count) {
    const size_t address = (size_t)bytes;
    if (count >= 8 && address % 8 == 0) return *(const ckh_u64 *)bytes;
    if (count >= 8 && address % 4 == 0) {
        const ckh_u32 *words = (const ckh_u32 *)bytes;
        return words[0] | (ckh_u64)words[1] << 32;
    }
    ckh_u64 pair = 0;
#pragma unroll 1
    for (unsigned i = 0; i < 8 && i < count; i++) pair |= (ckh_u64)bytes[i] << (8 * i);
    return pair;
}

struct ck_found {
    ckh128_t digest;
    bool is_fill;  // a multiple of eight bytes, which repeat the first eight
};

// Digests one message by a whole warp; every lane gets the result.
__device__ __forceinline__ ck_found ck_digest_warp(const ckh_u8 *bytes, ckh_u64 length,
                                                   const uint4 *keys) {
    const ckh_u32 *words = (const ckh_u32 *)keys;
    const unsigned lane = threadIdx.x % CK_WARP;
    const ckh_u64 first = ck_load_pair(bytes, length);
    ckh_u64 total[4] = {0, 0, 0, 0}, sums[4] = {0, 0, 0, 0};
    bool unlike = length == 0 || length % 8 != 0;
#pragma unroll 1
    for (ckh_u64 start = 0; start < length; start += CKH_BLOCK_BYTES) {
        const ckh_u64 end = length - start < CKH_BLOCK_BYTES ? length : start + CKH_BLOCK_BYTES;
        sums[0] = sums[1] = sums[2] = sums[3] = 0;
#pragma unroll 1
        for (ckh_u64 at = start + 8 * lane; at < end; at += 8 * CK_WARP) {
            const ckh_u64 pair = ck_load_pair(bytes + at, end - at);
            const ckh_u32 *key = words + (at - start) / 4;
#pragma unroll
            for (int p = 0; p < 4; p++) {
                sums[p] = ckh_nh(sums[p], (ckh_u32)pair, (ckh_u32)(pair >> 32), key[4 * p],
                                 key[4 * p + 1]);
            }
            unlike |= pair != first;
        }
#pragma unroll
        for (int p = 0; p < 4; p++) {
#pragma unroll
            for (int mask = 16; mask; mask >>= 1) sums[p] += ck_from_lane_xor(sums[p], mask);
        }
        if (length > CKH_BLOCK_BYTES) {
            ckh_u64 level1[10];
#pragma unroll
            for (int j = 0; j < 10; j++) level1[j] = ckh_level1_key(start / CKH_BLOCK_BYTES * 4 + j);
            ckh_level1(total, sums, level1);
        }
    }
#pragma unroll
    for (int p = 0; p < 4; p++) total[p] = length > CKH_BLOCK_BYTES ? total[p] : sums[p];
    ck_found found;
    found.digest = ckh_final(total[0], total[1], total[2], total[3], length, CKH_TAG_LEAF);
    found.is_fill = __ballot_sync(CK_ALL_LANES, unlike) == 0;
    return found;
}
