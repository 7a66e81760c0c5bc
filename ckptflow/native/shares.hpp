// Cuts a loop into shares and gives each to a thread of its own.
#pragma once

#include <cstddef>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

namespace ckh {

static inline std::size_t share_of(std::size_t count, std::size_t threads) {
    return threads > 1 ? (count + threads - 1) / threads : count;
}

// Calls work(first, end) for shares that together are 0 .. count; each starts at a multiple of
// share_of(count, threads). Without a thread to be had (a process limit, say) the calling one
// does that share of the work too, as one piece with its own. `work` must not throw.
template <typename Work>
void in_shares(std::size_t count, std::size_t threads, Work work) {
    const std::size_t share = share_of(count, threads);
    std::size_t rest = count;  // Shares are given away from the end; the caller keeps the front.
    std::vector<std::thread> crew;
    try {
        crew.reserve(threads);
        while (rest > share) {
            const std::size_t first = (rest - 1) / share * share;
            crew.emplace_back(work, first, rest);
            rest = first;
        }
    } catch (const std::system_error &) {
    } catch (const std::bad_alloc &) {
    }
    work(0, rest);
    for (std::thread &member : crew) member.join();
}

}  // namespace ckh
