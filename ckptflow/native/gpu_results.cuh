// From numbered cells to runs and bytes for the host, and to the state of the next diff.
//
// kernels.cu includes this at its end; it says what the parameters mean and has the kernels that
// run before these.
#pragma once

// ---- 6. Join changed cells to runs ----------------------------------------------------------

struct ck_items {
    const ckh_u32 *list, *chunk_list;
    const ckh_u8 *kinds;
    const ckh_u64 *refs;
    ckh_u64 first_cell;

    __device__ __forceinline__ ckh_u64 index(ckh_u64 i) const {
        return ck_cell_index(list[i], first_cell, chunk_list);
    }
    __device__ __forceinline__ ckh_u8 kind(ckh_u64 i) const {
        const ckh_u8 kind = kinds[list[i]];
        return kind == CK_AGAIN ? CK_KNOWN : kind;
    }
    __device__ __forceinline__ ckh_u64 ref(ckh_u64 i) const {
        const ckh_u32 cell = list[i];
        return kinds[cell] == CK_AGAIN ? refs[refs[cell]] : refs[cell];
    }
    __device__ __forceinline__ bool starts_run(ckh_u64 i) const {
        if (i == 0 || kind(i) != kind(i - 1) || index(i) != index(i - 1) + 1) return true;
        return ref(i) != ref(i - 1) + (kind(i) == CK_FILL ? 0 : 1);
    }
};

CK_KERNEL ck_count_runs(const ckh_u32 *__restrict__ list, const ckh_u64 *__restrict__ item_counts,
                        const ckh_u32 *__restrict__ chunk_list, const ckh_u8 *__restrict__ kinds,
                        const ckh_u64 *__restrict__ refs, ckh_u64 first_cell,
                        ckh_u64 *__restrict__ run_counts) {
    const ck_items items = {list, chunk_list, kinds, refs, first_cell};
    const ck_range part = ck_part(ck_total(item_counts));
    ckh_u64 count = 0;
    for (ckh_u64 i = part.begin + threadIdx.x; i < part.end; i += CK_THREADS) {
        count += items.starts_run(i);
    }
    ck_put_count(run_counts, count);
}

// ---- 7. Hand over: the host knows the totals by now, and the targets are its memory ---------

CK_KERNEL ck_emit_runs(const ckh_u32 *__restrict__ list, const ckh_u64 *__restrict__ item_counts,
                       const ckh_u32 *__restrict__ chunk_list, const ckh_u8 *__restrict__ kinds,
                       const ckh_u64 *__restrict__ refs, ckh_u64 first_cell, ckh_u64 length,
                       const ckh_u64 *__restrict__ run_counts, ckh_u8 *__restrict__ run_kind,
                       ckh_u64 *__restrict__ run_start, ckh_u64 *__restrict__ run_end,
                       ckh_u64 *__restrict__ run_ref) {
    const ck_items items = {list, chunk_list, kinds, refs, first_cell};
    const ckh_u64 item_count = ck_total(item_counts);
    const ck_range part = ck_part(item_count);
    ckh_u64 at = ck_before(run_counts);
    for (ckh_u64 first = part.begin; first < part.end; first += CK_THREADS) {
        const ckh_u64 i = first + threadIdx.x;
        const bool starts = i < part.end && items.starts_run(i);
        unsigned sum;
        // An item belongs to the last run that starts at or before it.
        const ckh_u64 run = at + ck_rank(starts, sum) - (starts ? 0 : 1);
        at += sum;
        if (i >= part.end) continue;
        const ckh_u64 start = items.index(i) * CK_CELL;
        if (starts) {
            run_kind[run] = items.kind(i);
            run_start[run] = start;
            run_ref[run] = items.ref(i);
        }
        if (i + 1 == item_count || items.starts_run(i + 1)) {
            run_end[run] = ck_min(start + CK_CELL, length);
        }
    }
}

// The changed chunks: `listed` are their numbers, counted from first_number.
CK_KERNEL ck_emit_chunks(const ckh_u32 *__restrict__ listed, ckh_u64 first_number,
                         const ckh_u64 *__restrict__ chunk_counts,
                         const ckh128_t *__restrict__ new_chunks, ckh_u64 *__restrict__ out_index,
                         ckh128_t *__restrict__ out_digest) {
    const ck_range part = ck_part(ck_total(chunk_counts));
    for (ckh_u64 i = part.begin + threadIdx.x; i < part.end; i += CK_THREADS) {
        const ckh_u64 chunk = listed[i] - first_number;
        out_index[i] = chunk;
        out_digest[i] = new_chunks[chunk];
    }
}

// Copies up to 16 bytes as wide as the addresses allow.
__device__ __forceinline__ void ck_copy_unit(ckh_u8 *target, const ckh_u8 *source, ckh_u64 size) {
    const size_t addresses = (size_t)target | (size_t)source;
    if (size >= 16 && addresses % 16 == 0) {
        *(uint4 *)target = __ldcs((const uint4 *)source);
        return;
    }
    const ckh_u64 words = addresses % 4 == 0 ? ck_min(size, 16) / 4 : 0;
#pragma unroll 1
    for (ckh_u64 i = 0; i < words; i++) ((ckh_u32 *)target)[i] = ((const ckh_u32 *)source)[i];
#pragma unroll 1
    for (ckh_u64 i = 4 * words; i < 16 && i < size; i++) target[i] = source[i];
}

// Collects the bytes of first occurrences, in the order of their ids. The first `staged_bytes`
// go to device memory, from where a copy takes them while the application goes on; the rest goes
// to the host at once, however much it is.
CK_KERNEL ck_gather(const ckh_u8 *__restrict__ data, ckh_u64 length,
                    const ckh_u32 *__restrict__ list, const ckh_u64 *__restrict__ item_counts,
                    const ckh_u32 *__restrict__ chunk_list, const ckh_u8 *__restrict__ kinds,
                    const ckh_u64 *__restrict__ refs, ckh_u64 first_cell, ckh_u64 next_id,
                    ckh_u8 *__restrict__ staging, ckh_u64 staged_bytes,
                    ckh_u8 *__restrict__ payload) {
    constexpr unsigned units = (CK_CELL + 15) / 16;
    const ck_range part = ck_part(ck_total(item_counts));
    const ckh_u64 end = part.end * units;
    for (ckh_u64 u = part.begin * units + threadIdx.x; u < end; u += CK_THREADS) {
        const ckh_u32 cell = list[u / units];
        if (kinds[cell] != CK_NEW) continue;
        const ckh_u64 offset = u % units * 16;
        const ckh_u64 from = ck_cell_index(cell, first_cell, chunk_list) * CK_CELL;
        const ckh_u64 to = (refs[cell] - next_id) * CK_CELL;
        if (from + offset >= length) continue;
        const ckh_u64 size = ck_min(CK_CELL - offset, length - from - offset);
        ckh_u8 *target = to < staged_bytes ? staging : payload;
        ck_copy_unit(target + to + offset, data + from + offset, size);
    }
}

// ---- 8. Commit, or take back ----------------------------------------------------------------

// Makes the changed cells of a region the old ones, and puts first occurrences into the log: those
// from id keep_from on. `settle`: mark them in the table as being there.
CK_KERNEL ck_commit(const ckh_u32 *__restrict__ list, ckh_u64 item_count,
                    const ckh_u32 *__restrict__ chunk_list, const ckh128_t *__restrict__ digests,
                    const ckh_u8 *__restrict__ kinds, const ckh_u64 *__restrict__ refs,
                    ckh_u64 first_cell, ckh128_t *__restrict__ old_cells, ckh_u64 *slots,
                    ckh_u64 slot_count, ckh128_t *__restrict__ log, ckh_u64 log_capacity,
                    ckh_u64 keep_from, ckh_u64 settle) {
    const ck_table table = {slots, slot_count, log, digests};
    const ck_range part = ck_part(item_count);
    for (ckh_u64 i = part.begin + threadIdx.x; i < part.end; i += CK_THREADS) {
        const ckh_u32 cell = list[i];
        const ckh128_t digest = digests[cell];
        old_cells[ck_cell_index(cell, first_cell, chunk_list)] = digest;
        if (kinds[cell] != CK_NEW || refs[cell] < keep_from) continue;
        const ckh_u64 place = refs[cell] % log_capacity;
        log[place] = digest;
        if (settle) ck_settle(table, digest, cell, place);
    }
}

// Fills an empty table with the log.
CK_KERNEL ck_enter_log(const ckh128_t *__restrict__ log, ckh_u64 log_capacity, ckh_u64 first_id,
                       ckh_u64 next_id, ckh_u64 *slots, ckh_u64 slot_count) {
    const ck_table table = {slots, slot_count, log, nullptr};
    const ck_range part = ck_part(next_id - first_id);
    for (ckh_u64 i = part.begin + threadIdx.x; i < part.end; i += CK_THREADS) {
        const ckh_u64 place = (first_id + i) % log_capacity;
        ck_enter(table, log[place], ck_entry(log[place], place, 0));
    }
}

// Adds the first occurrences of a region that are pending.
CK_KERNEL ck_enter_pending(const ckh_u32 *__restrict__ list, ckh_u64 item_count,
                           const ckh128_t *__restrict__ digests, const ckh_u8 *__restrict__ kinds,
                           ckh_u64 *slots, ckh_u64 slot_count) {
    const ck_table table = {slots, slot_count, nullptr, digests};
    const ck_range part = ck_part(item_count);
    for (ckh_u64 i = part.begin + threadIdx.x; i < part.end; i += CK_THREADS) {
        const ckh_u32 cell = list[i];
        if (kinds[cell] != CK_NEW) continue;
        ck_enter(table, digests[cell], ck_entry(digests[cell], cell, CK_PENDING));
    }
}
