// Evaluates and simulates patterns of all kinds, likely ones and impossible ones, so that the
// sanitizers see every table read or written too far, and every number that is none. What comes
// out must be an efficiency; the parts of a simulation must add up to its time. Prints how many
// did not, and fails if there are any. tests/native/sanitize.sh builds and runs it.
#include "renewal.hpp"
#include "simulate.hpp"

#include <cstdio>

namespace {

levels::Random numbers(1);

double between(double low, double high) { return low + (high - low) * numbers.uniform(); }

// Now and then exactly nothing, or so much that nothing gets anywhere.
double amount(double typical) {
    const double kind = numbers.uniform();
    if (kind < 0.2) return 0;
    if (kind < 0.25) return typical * 1e6;
    return typical * std::exp(between(-3, 3));
}

levels::Pattern some_pattern() {
    levels::Pattern pattern;
    pattern.count = 1 + static_cast<int>(between(0, levels::kMax - 1e-9));
    pattern.interval = between(0.1, 100);
    double latency = 0;
    std::int64_t every = 1;
    for (int at = 0; at < pattern.count; at++) {
        latency += amount(20);
        if (at) every *= 1 + static_cast<std::int64_t>(between(0, 5));
        pattern.level[at] = {amount(1e-3), amount(1), latency, amount(0.1), amount(20),
                             numbers.uniform() < 0.5 ? 0 : numbers.uniform(),
                             numbers.uniform() < 0.5 ? 0 : numbers.uniform(),
                             numbers.uniform() < 0.1 ? 1000000 : 1 + static_cast<std::int64_t>(between(0, 4)),
                             every, 0};
    }
    return pattern;
}

levels::Surroundings some_surroundings(int count) {
    levels::Surroundings around;
    around.stop = amount(5);
    around.resume = amount(5);
    if (numbers.uniform() < 0.5) around.walltime = around.stop + around.resume + between(1, 1e4);
    around.queue = amount(100);
    around.notice = amount(5);
    around.spares = static_cast<std::int64_t>(between(-2, 3));
    around.repair = amount(1000);
    around.node_law = static_cast<int>(between(0, levels::kMax));
    around.allocation_law = static_cast<int>(between(0, levels::kMax));
    around.capacity = static_cast<std::int64_t>(between(0, 5));
    around.taken_class = static_cast<int>(between(0, count - 1e-9));
    return around;
}

bool adds_up(const levels::Account &one, bool whole) {
    const double sum = one.useful + one.blocked + one.interference + one.again + one.recovery + one.waiting;
    // One that ran out of events may end within a segment.
    return !whole || std::abs(sum - one.elapsed) <= 1e-6 * (1 + std::abs(one.elapsed));
}

bool simulates(const levels::Pattern &pattern) {
    const double times[] = {0, 0, 1, 50, 50, 1e5};
    levels::Law laws[levels::kMax + 1];
    const int law_count = static_cast<int>(between(0, levels::kMax + 1 - 1e-9));
    for (levels::Law &law : laws) {
        law.scale = amount(1000);
        law.shape = between(0.2, 3);
        law.klass = static_cast<int>(between(0, pattern.count - 1e-9));
        if (numbers.uniform() < 0.2) {
            law.times = times;
            law.time_count = 6;
        }
    }
    laws[levels::kMax].scale = amount(1e4);
    levels::Simulation simulation(pattern, laws, law_count, laws[levels::kMax],
                                  some_surroundings(pattern.count), 7);
    for (int batch = 0; batch < 3; batch++) {
        levels::Account account;
        const bool whole = simulation.advance(50, 2000, &account);
        if (!adds_up(account, whole)) return false;
        if (!whole) break;
    }
    return true;
}

}  // namespace

int main() {
    int wrong = 0, possible = 0;
    for (int at = 0; at < 3000; at++) {
        levels::Pattern pattern = some_pattern();
        if (!pattern.prepare()) continue;
        possible++;
        const double found = levels::efficiency(pattern);
        if (!(found >= 0 && found <= 1) || !simulates(pattern)) {
            std::printf("pattern %d: efficiency %g\n", at, found);
            wrong++;
        }
    }
    if (possible < 750) wrong++;
    std::printf("%d wrong\n", wrong);
    return wrong != 0;
}
