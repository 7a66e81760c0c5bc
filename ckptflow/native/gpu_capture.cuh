// The capture of a state on the GPU: digest all regions, and collect the chunks that are to be held.
//
// kernels.cu includes this at its end. The regions of a device are rows of one table, and their
// chunks have numbers that go on from row to row, so that a launch does all of them:
//
//   rows                  address, length, number of the first chunk, how many chunks have an old
//                         digest, chunks that are held together, and what is done (CK_ROW_*)
//   row_of                the row of every chunk; there are chunk_total of them
//   held                  which chunks the host is to get: all of a grain, or none
//   held_counts, byte_counts   how many each block found, and their bytes
//   listed                held chunks, rising; `count` of them from `begin` on make one piece
//   out_digest, out_bytes, out_index   a piece: digests, bytes and numbers of its chunks
//
// What is held is what ckptflow/native/capture.hpp holds: tests/gpu_emulated/test_capture_laws.py.
#pragma once

static constexpr ckh_u64 CK_ROW_WHOLE = 1;   // all of it is held
static constexpr ckh_u64 CK_ROW_DIGEST = 2;  // its chunks are digested and, unless WHOLE, compared

struct ck_row {
    ckh_u64 data, length, first, known, grain, how;

    __device__ __forceinline__ const ckh_u8 *start(ckh_u64 nth) const {
        return (const ckh_u8 *)data + nth * CK_CHUNK;
    }
    // Bytes of a chunk; the last may be short.
    __device__ __forceinline__ ckh_u64 size(ckh_u64 nth) const {
        return ck_min(length - nth * CK_CHUNK, CK_CHUNK);
    }
    __device__ __forceinline__ ckh_u64 chunks() const {
        return length / CK_CHUNK + (length % CK_CHUNK != 0);
    }
    // Whether lanes in groups digest a chunk; a warp does the others.
    __device__ __forceinline__ bool is_of_units(ckh_u64 nth) const {
        return CK_CHUNKS_OF_UNITS && data % 16 == 0 && length - nth * CK_CHUNK >= CK_CHUNK;
    }
};

struct ck_rows {
    const ck_row *__restrict__ rows;
    const ckh_u32 *__restrict__ row_of;
    const ckh128_t *__restrict__ old_chunks;
    ckh128_t *new_chunks;
    ckh_u8 *changed;

    __device__ __forceinline__ void put(ckh_u64 chunk, ckh128_t digest) const {
        const ck_row &row = rows[row_of[chunk]];
        new_chunks[chunk] = digest;
        changed[chunk] = row.how & CK_ROW_WHOLE || chunk - row.first >= row.known ||
                         !ck_equal(old_chunks[chunk], digest);
    }
};

// ---- 1. Digest the chunks of all rows and compare -------------------------------------------

CK_KERNEL ck_scan_rows(const ck_row *__restrict__ rows, const ckh_u32 *__restrict__ row_of,
                       ckh_u64 chunk_total, const uint4 *__restrict__ keys,
                       const ckh128_t *__restrict__ old_chunks, ckh128_t *__restrict__ new_chunks,
                       ckh_u8 *__restrict__ changed) {
    __shared__ uint4 shared_keys[CK_KEY_UNITS];
    ck_load_keys(shared_keys, keys);
#if CK_CHUNKS_OF_UNITS
    using shape = ck_shape<CK_CHUNK>;
    __shared__ ckh_u64 level1[shape::level1_keys];
    ck_make_level1_keys(level1, shape::level1_keys);
#endif
    __syncthreads();

    const ck_rows all = {rows, row_of, old_chunks, new_chunks, changed};
    const ck_range part = ck_part(chunk_total);
#if CK_CHUNKS_OF_UNITS
    constexpr unsigned groups = CK_THREADS / shape::lanes;
    const unsigned group_lane = threadIdx.x % shape::lanes;
    for (ckh_u64 first = part.begin; first < part.end; first += groups * CK_ILP) {
        ck_message message[CK_ILP];
        ckh128_t digest[CK_ILP];
        const ckh_u64 mine = first + threadIdx.x / shape::lanes;
#pragma unroll
        for (int j = 0; j < CK_ILP; j++) {
            const ckh_u64 chunk = mine + j * groups;
            message[j].units = nullptr;
            if (chunk >= part.end) continue;
            const ck_row &row = rows[row_of[chunk]];
            const ckh_u64 nth = chunk - row.first;
            if (row.how & CK_ROW_DIGEST && row.is_of_units(nth)) {
                message[j].units = (const uint4 *)row.start(nth);
            }
        }
        ck_digest_lanes<CK_CHUNK, false>(message, shared_keys, level1, digest);
#pragma unroll
        for (int j = 0; j < CK_ILP; j++) {
            if (group_lane == 0 && message[j].units) all.put(mine + j * groups, digest[j]);
        }
    }
#endif
    // What is left over: each lane looks at a chunk, and the warp digests those that are found.
    const unsigned lane = threadIdx.x % CK_WARP;
    for (ckh_u64 first = part.begin + threadIdx.x / CK_WARP * CK_WARP; first < part.end;
         first += CK_THREADS) {
        bool left_over = false;
        if (first + lane < part.end) {
            const ck_row &row = rows[row_of[first + lane]];
            left_over = row.how & CK_ROW_DIGEST && !row.is_of_units(first + lane - row.first);
            if (!(row.how & CK_ROW_DIGEST)) changed[first + lane] = row.how & CK_ROW_WHOLE;
        }
        for (unsigned left = __ballot_sync(CK_ALL_LANES, left_over); left; left &= left - 1) {
            const ckh_u64 chunk = first + __ffs((int)left) - 1;
            const ck_row &row = rows[row_of[chunk]];
            const ckh_u64 nth = chunk - row.first;
            const ck_found found = ck_digest_warp(row.start(nth), row.size(nth), shared_keys);
            if (lane == 0) all.put(chunk, found.digest);
        }
    }
}

// ---- 2. Hold every grain of which a chunk changed; then ck_list_chunks ----------------------

CK_KERNEL ck_hold_grains(const ck_row *__restrict__ rows, const ckh_u32 *__restrict__ row_of,
                         ckh_u64 chunk_total, const ckh_u8 *__restrict__ changed,
                         ckh_u8 *__restrict__ held, ckh_u64 *__restrict__ held_counts,
                         ckh_u64 *__restrict__ byte_counts) {
    const ck_range part = ck_part(chunk_total);
    ckh_u64 count = 0, bytes = 0;
    for (ckh_u64 chunk = part.begin + threadIdx.x; chunk < part.end; chunk += CK_THREADS) {
        const ck_row &row = rows[row_of[chunk]];
        const ckh_u64 nth = chunk - row.first, grain = row.grain;
        const ckh_u64 begin = nth / grain * grain, end = ck_min(begin + grain, row.chunks());
        bool found = false;
        for (ckh_u64 i = begin; i < end && !found; i++) found = changed[row.first + i];
        held[chunk] = found;
        if (found) {
            count++;
            bytes += row.size(nth);
        }
    }
    ck_put_count(held_counts, count);
    ck_put_count(byte_counts, bytes);
}

// ---- 3. Collect a piece of what is held -----------------------------------------------------

CK_KERNEL ck_take_chunks(const ck_row *__restrict__ rows, const ckh_u32 *__restrict__ row_of,
                         const ckh_u32 *__restrict__ listed, ckh_u64 begin, ckh_u64 count,
                         const ckh128_t *__restrict__ new_chunks,
                         ckh128_t *__restrict__ out_digest, ckh_u8 *__restrict__ out_bytes,
                         ckh_u32 *__restrict__ out_index) {
    constexpr unsigned units = (CK_CHUNK + 15) / 16;
    const ck_range part = ck_part(count * units);
    for (ckh_u64 u = part.begin + threadIdx.x; u < part.end; u += CK_THREADS) {
        const ckh_u64 i = u / units, offset = u % units * 16;
        const ckh_u32 chunk = listed[begin + i];
        if (offset == 0) {
            out_index[i] = chunk;
            out_digest[i] = new_chunks[chunk];
        }
        const ck_row &row = rows[row_of[chunk]];
        const ckh_u64 nth = chunk - row.first, size = row.size(nth);
        if (offset >= size) continue;
        ck_copy_unit(out_bytes + i * CK_CHUNK + offset, row.start(nth) + offset, size - offset);
    }
}
