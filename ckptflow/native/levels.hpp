// Levels of checkpoints as a pattern uses them: what both the exact evaluation and the simulation
// begin with. Positions count saves; a segment leads from a position to the next.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace levels {

constexpr int kMax = 5;
constexpr std::int64_t kPositionsMax = std::int64_t{1} << 17;
constexpr double kEndingsMax = 1 << 22;  // In the tables of an exact evaluation: 200 MB.

struct Level {
    double rate;          // Of failures that need this level, per second.
    double blocked;       // A save that goes here holds the application up, seconds.
    double latency;       // From the save until the copy is here, seconds.
    double interference;  // Part by which computing is slower meanwhile.
    double recovery;      // From a failure until computing goes on, seconds.
    double escalation;    // Probability that a restore fails at its end.
    double second_loss;   // Probability that a second failure of the class takes this level, too.
    std::int64_t in_flight;
    std::int64_t every;   // Every how many saves one goes here; the first is 1, each divides the next.
    std::int64_t lag;     // In so many segments a copy is here.
};

// Levels of one pattern, and how long its segments take.
struct Pattern {
    int count = 0;
    double interval = 0;
    Level level[kMax];
    std::vector<double> segment;  // Seconds from position i to i + 1, the save included.
    std::vector<std::int8_t> top; // Outermost level, by its place, that position i goes to.

    std::int64_t positions() const { return level[count - 1].every; }
    double rate() const {
        double sum = 0;
        for (int at = 0; at < count; at++) sum += level[at].rate;
        return sum;
    }

    // Fills in lags and segments. False if more copies would be on their way than may be, or than
    // tables have room for.
    bool prepare() {
        const double nominal = interval + level[0].blocked;
        std::int64_t lag = 0;
        for (int at = 0; at < count; at++) {
            Level &one = level[at];
            // A copy that arrives with the last bit of a segment is there with the segment.
            const double segments = std::ceil(one.latency / nominal * (1 - 1e-12));
            if (segments > 4.0 * kPositionsMax) return false;
            lag = std::max(lag, static_cast<std::int64_t>(segments));
            one.lag = lag;
            if (one.lag > one.in_flight * one.every) return false;
        }
        const std::int64_t count_all = positions();
        double endings = 0;
        for (int at = 0; at < count; at++) {
            endings += static_cast<double>(count_all / level[at].every) *
                       static_cast<double>(level[at].every + level[at].lag + 2);
        }
        if (endings > kEndingsMax) return false;
        segment.assign(static_cast<std::size_t>(count_all), 0);
        top.assign(static_cast<std::size_t>(count_all), 0);
        for (std::int64_t position = 0; position < count_all; position++) {
            int outermost = 0;
            while (outermost + 1 < count && position % level[outermost + 1].every == 0) outermost++;
            top[static_cast<std::size_t>(position)] = static_cast<std::int8_t>(outermost);
        }
        for (std::int64_t from = 0; from < count_all; from++) {
            double seconds = interval;
            for (int at = 0; at <= top[static_cast<std::size_t>((from + 1) % count_all)]; at++) {
                seconds += level[at].blocked;
            }
            for (int at = 0; at < count; at++) seconds += slowed(level[at], from, nominal);
            segment[static_cast<std::size_t>(from)] = seconds;
        }
        return true;
    }

  private:
    // By how much computing takes longer in a segment, for copies on their way to a level.
    static double slowed(const Level &level, std::int64_t from, double nominal) {
        if (level.interference == 0 || level.latency == 0) return 0;
        double seconds = 0;
        for (std::int64_t age = from % level.every; age < level.lag; age += level.every) {
            const double begin = static_cast<double>(age) * nominal;
            seconds += std::max(0.0, std::min(level.latency, begin + nominal) - begin);
        }
        return seconds * level.interference;
    }
};

}  // namespace levels
