// Order on the GPU: which items a block has, and where its results go, the same in every run.
//
// kernels.cu includes this. The items of a phase are shared out in order: block b has the b-th
// of gridDim.x consecutive parts. A kernel that finds things counts them by part; the next kernel,
// with the same grid, adds up the counts of the parts before its own and writes its finds from
// there on, in the order of the items. Nothing depends on which block or thread came first.
#pragma once

#include "gpu_digest.cuh"

// Threads in a block: of every kernel, a multiple of the warp.
#ifndef CK_THREADS
#define CK_THREADS 256
#endif
static constexpr unsigned CK_WARPS = CK_THREADS / CK_WARP;

struct ck_range {
    ckh_u64 begin, end;
};

// The part of this block.
__device__ __forceinline__ ck_range ck_part(ckh_u64 items) {
    const ckh_u64 each = (items + gridDim.x - 1) / gridDim.x;
    const ckh_u64 begin = each * blockIdx.x < items ? each * blockIdx.x : items;
    ck_range part;
    part.begin = begin;
    part.end = items - begin < each ? items : begin + each;
    return part;
}

// The sum of `value` over all threads of the block, which all get it.
__device__ __forceinline__ ckh_u64 ck_block_sum(ckh_u64 value) {
    __shared__ ckh_u64 warp_sums[CK_WARPS];
    for (int mask = 16; mask; mask >>= 1) value += ck_from_lane_xor(value, mask);
    if (threadIdx.x % CK_WARP == 0) warp_sums[threadIdx.x / CK_WARP] = value;
    __syncthreads();
    ckh_u64 sum = 0;
    for (unsigned warp = 0; warp < CK_WARPS; warp++) sum += warp_sums[warp];
    __syncthreads();  // The next call writes warp_sums again.
    return sum;
}

// Ends a counting kernel.
__device__ __forceinline__ void ck_put_count(ckh_u64 *counts, ckh_u64 mine) {
    const ckh_u64 sum = ck_block_sum(mine);
    if (threadIdx.x == 0) counts[blockIdx.x] = sum;
}

// What the counting kernel found in the parts before this block's, or in all parts.
__device__ __forceinline__ ckh_u64 ck_sum_counts(const ckh_u64 *counts, unsigned parts) {
    ckh_u64 mine = 0;
    for (unsigned i = threadIdx.x; i < parts; i += blockDim.x) mine += counts[i];
    return ck_block_sum(mine);
}

__device__ __forceinline__ ckh_u64 ck_before(const ckh_u64 *counts) {
    return ck_sum_counts(counts, blockIdx.x);
}

__device__ __forceinline__ ckh_u64 ck_total(const ckh_u64 *counts) {
    return ck_sum_counts(counts, gridDim.x);
}

// For each thread that has `flag`: how many threads before it have it. `sum`: how many in all.
__device__ __forceinline__ unsigned ck_rank(bool flag, unsigned &sum) {
    __shared__ unsigned warp_counts[CK_WARPS];
    const unsigned lane = threadIdx.x % CK_WARP, own = threadIdx.x / CK_WARP;
    const unsigned votes = __ballot_sync(CK_ALL_LANES, flag);
    if (lane == 0) warp_counts[own] = __popc(votes);
    __syncthreads();
    unsigned before = 0;
    sum = 0;
    for (unsigned warp = 0; warp < CK_WARPS; warp++) {
        if (warp == own) before = sum;
        sum += warp_counts[warp];
    }
    __syncthreads();  // The next call writes warp_counts again.
    return before + __popc(votes & ((1u << lane) - 1));
}
