// Expected time of a pattern of checkpoints under failures without memory, exactly.
//
// A *process* (level j, base p) begins at a position p whose checkpoint the levels up to j can
// use, and ends when it arrives at a later position, or with a failure of a class above j. Which
// copies there are when it arrives at a position for the first time does not depend on what
// happened before: at level c the newest is max(p, every_c * floor((position - lag_c) / every_c)).
// So it is a chain of first passages. After a failure of class c < j, what leads back is a process
// (c, that copy); after one of class j it is the process itself, again. A table for each level has,
// by base and distance, the expected time and the probability of each ending; that of the levels
// further in is made first. docs/design/014-multilevel-policy.md says it in words.
#pragma once

#include "levels.hpp"

#include <cstring>
#include <unordered_map>

namespace levels {

// How a process may end that does not arrive, and how long it takes until either.
struct Ending {
    double seconds = 0;
    double lost[kMax] = {};  // By class, above the level of the process.

    double arrived(int level, int count) const {
        double sum = 0;
        for (int klass = level + 1; klass < count; klass++) sum += lost[klass];
        return std::max(0.0, 1 - sum);
    }
};

class Renewal {
  public:
    explicit Renewal(const Pattern &pattern) : pattern_(pattern), count_(pattern.count) {
        rate_ = pattern.rate();
        for (int klass = 0; klass < count_; klass++) recover(klass);
    }

    // Expected seconds from position 0 to the next time that the pattern begins, in the long run.
    double cycle_seconds() {
        const int last = count_ - 1;
        for (int level = 0; level < last; level++) {
            for (std::int64_t number : alike(level)) walk(level, number);
        }
        row_[last].assign(1, 0);
        table_[last].resize(static_cast<std::size_t>(width(last)));
        walk(last, 0);
        double sum = 0;
        for (std::int64_t at = 0; at < pattern_.positions() && std::isfinite(sum); at++) {
            sum += frontier(at);
        }
        return sum;
    }

  private:
    // What a recovery of a class comes to: how long until it succeeds, or becomes another one.
    struct Recovery {
        double seconds, success;
    };

    std::int64_t bases(int level) const { return pattern_.positions() / pattern_.level[level].every; }
    std::int64_t width(int level) const {
        return pattern_.level[level].every + pattern_.level[level].lag + 2;
    }

    // The newest copy of a class at a position, if nothing was lost; may lie before 0.
    std::int64_t newest(int klass, std::int64_t position) const {
        const Level &level = pattern_.level[klass];
        const std::int64_t arrived = position - level.lag;
        std::int64_t number = arrived / level.every;
        if (arrived % level.every < 0) number--;
        return number * level.every;
    }

    const Ending &ending(int level, std::int64_t base, std::int64_t distance) const {
        std::int64_t number = base / pattern_.level[level].every % bases(level);
        if (number < 0) number += bases(level);
        if (level == count_ - 1) number = 0;
        const std::int64_t row = row_[level][static_cast<std::size_t>(number)];
        return table_[level][static_cast<std::size_t>(row * width(level) + distance)];
    }

    // Gives a row of a table to each base of a level, and returns the first base of each row.
    //
    // What a process does depends on its base only by the segments that it goes through. Most
    // are like others: they differ only where copies to levels further out begin.
    std::vector<std::int64_t> alike(int level) {
        std::vector<std::int64_t> first;
        std::unordered_map<std::uint64_t, std::int64_t> known;
        row_[level].resize(static_cast<std::size_t>(bases(level)));
        for (std::int64_t number = 0; number < bases(level); number++) {
            const std::uint64_t mark = marked(level, number);
            const auto found = known.find(mark);
            const auto rows = static_cast<std::int64_t>(first.size());
            if (found != known.end() && goes_as(level, number, first[static_cast<std::size_t>(found->second)])) {
                row_[level][static_cast<std::size_t>(number)] = found->second;
                continue;
            }
            known.emplace(mark, rows);
            row_[level][static_cast<std::size_t>(number)] = rows;
            first.push_back(number);
        }
        table_[level].resize(first.size() * static_cast<std::size_t>(width(level)));
        return first;
    }

    std::uint64_t marked(int level, std::int64_t number) const {
        const std::int64_t base = number * pattern_.level[level].every;
        std::uint64_t mark = 1469598103934665603u;  // FNV-1a.
        for (std::int64_t distance = 0; distance + 1 < width(level); distance++) {
            std::uint64_t bits;
            const double seconds = segment_at(base + distance);
            std::memcpy(&bits, &seconds, sizeof bits);
            mark = (mark ^ bits) * 1099511628211u;
        }
        return mark;
    }

    bool goes_as(int level, std::int64_t one, std::int64_t other) const {
        const std::int64_t every = pattern_.level[level].every;
        for (std::int64_t distance = 0; distance + 1 < width(level); distance++) {
            if (segment_at(one * every + distance) != segment_at(other * every + distance)) return false;
        }
        return true;
    }

    void recover(int klass) {
        const Level &level = pattern_.level[klass];
        double leaves = level.second_loss * level.rate;
        for (int above = klass + 1; above < count_; above++) leaves += pattern_.level[above].rate;
        if (klass == count_ - 1) leaves = 0;
        const double whole = rate_ * level.recovery;
        const double once = rate_ > 0 ? -std::expm1(-whole) / rate_ : level.recovery;
        // It is begun again after a failure of its own class or a lower one.
        const double again = std::exp(-whole) + leaves * once;
        recovery_[klass] = {once / again, std::exp(-whole) / again};
    }

    // Sets by[c] to what follows a failure of class c, for c from `from` down: until the arrival
    // at `target`, or an ending above `level`. by[from + 1 ... level] are given.
    void follow(Ending *by, int level, int from, std::int64_t base, std::int64_t target) const {
        for (int klass = from; klass >= 0; klass--) {
            const Level &one = pattern_.level[klass];
            const Recovery &recovery = recovery_[klass];
            const bool outermost = klass == count_ - 1;
            const double escalates = outermost ? 0 : one.escalation;
            const double restored = recovery.success * (1 - escalates);
            const double next =
                outermost ? 0 : recovery.success * escalates + one.second_loss * one.rate * recovery.seconds;
            const std::int64_t origin = std::max(base, newest(klass, target - 1));
            const Ending &back = ending(klass, origin, target - origin);
            Ending &result = by[klass];
            result = Ending{};
            result.seconds = recovery.seconds + restored * back.seconds;
            for (int above = klass + 1; above < count_; above++) {
                const double enters = pattern_.level[above].rate * recovery.seconds +
                                      restored * back.lost[above] + (above == klass + 1 ? next : 0);
                add(result, enters, by, above, level);
            }
        }
    }

    // Adds what follows with a probability after a failure of a class, which may be an ending.
    void add(Ending &to, double probability, const Ending *by, int klass, int level) const {
        if (klass > level) {
            to.lost[klass] += probability;
            return;
        }
        to.seconds += probability * by[klass].seconds;
        for (int above = level + 1; above < count_; above++) {
            to.lost[above] += probability * by[klass].lost[above];
        }
    }

    // One segment, and what follows the failures in it.
    Ending step(const Ending *by, int level, std::int64_t from) const {
        const double length = pattern_.segment[static_cast<std::size_t>(from % pattern_.positions())];
        Ending result;
        result.seconds = rate_ > 0 ? -std::expm1(-rate_ * length) / rate_ : length;
        const double once = result.seconds;
        for (int klass = 0; klass < count_; klass++) {
            add(result, pattern_.level[klass].rate * once, by, klass, level);
        }
        return result;
    }

    // Fills the row of one base.
    //
    // By the way back of class `level` the segment's own unknown ending comes in again: what
    // follows such a failure is  recovery + so far + arrived * x  with x the unknown. Everything is
    // linear, so it is computed for x = 0 and, in `share`, how much of x it has.
    void walk(int level, std::int64_t number) {
        const std::int64_t base = number * pattern_.level[level].every;
        const std::int64_t place = row_[level][static_cast<std::size_t>(number)] * width(level);
        Ending *row = &table_[level][static_cast<std::size_t>(place)];
        row[0] = Ending{};
        for (std::int64_t distance = 0; distance + 1 < width(level); distance++) {
            const std::int64_t from = base + distance;
            const Ending &far = row[distance];
            const double arrived = far.arrived(level, count_);
            Ending by[kMax];
            double share[kMax] = {};
            again(by[level], level, far);
            const bool outermost = level == count_ - 1;
            share[level] =
                recovery_[level].success * (outermost ? 1 : 1 - pattern_.level[level].escalation) * arrived;
            follow(by, level, level - 1, base, from + 1);
            shares(share, level, base, from + 1);
            Ending one = step(by, level, from);
            double own = 0;
            for (int klass = 0; klass <= level; klass++) {
                own += pattern_.level[klass].rate * share[klass];
            }
            const double once = rate_ > 0
                ? -std::expm1(-rate_ * segment_at(from)) / rate_ : segment_at(from);
            const double left = 1 - own * once;
            Ending &next = row[distance + 1];
            next.seconds = far.seconds + arrived * one.seconds / left;
            for (int above = level + 1; above < count_; above++) {
                next.lost[above] = far.lost[above] + arrived * one.lost[above] / left;
            }
        }
    }

    double segment_at(std::int64_t from) const {
        return pattern_.segment[static_cast<std::size_t>(from % pattern_.positions())];
    }

    // What follows a failure of the process's own class, but for the unknown segment itself.
    void again(Ending &to, int level, const Ending &far) const {
        const Level &one = pattern_.level[level];
        const Recovery &recovery = recovery_[level];
        const bool outermost = level == count_ - 1;
        const double escalates = outermost ? 0 : one.escalation;
        const double restored = recovery.success * (1 - escalates);
        to = Ending{};
        to.seconds = recovery.seconds + restored * far.seconds;
        for (int above = level + 1; above < count_; above++) {
            to.lost[above] = pattern_.level[above].rate * recovery.seconds + restored * far.lost[above];
        }
        if (!outermost) {
            to.lost[level + 1] +=
                recovery.success * escalates + one.second_loss * one.rate * recovery.seconds;
        }
    }

    // How much of the unknown comes in with what follows a failure of each class below `level`.
    void shares(double *share, int level, std::int64_t base, std::int64_t target) const {
        for (int klass = level - 1; klass >= 0; klass--) {
            const Level &one = pattern_.level[klass];
            const Recovery &recovery = recovery_[klass];
            const double restored = recovery.success * (1 - one.escalation);
            const double next =
                recovery.success * one.escalation + one.second_loss * one.rate * recovery.seconds;
            const std::int64_t origin = std::max(base, newest(klass, target - 1));
            const Ending &back = ending(klass, origin, target - origin);
            share[klass] = 0;
            for (int above = klass + 1; above <= level; above++) {
                const double enters = pattern_.level[above].rate * recovery.seconds +
                                      restored * back.lost[above] + (above == klass + 1 ? next : 0);
                share[klass] += enters * share[above];
            }
        }
    }

    // Expected time from the first arrival at a position to that at the next, in the long run.
    double frontier(std::int64_t from) const {
        const int last = count_ - 1;
        Ending by[kMax];
        const std::int64_t origin = newest(last, from);
        const Ending &back = ending(last, origin, from + 1 - origin);
        by[last].seconds = recovery_[last].seconds + recovery_[last].success * back.seconds;
        follow(by, last, last - 1, newest(last, from), from + 1);
        return step(by, last, from).seconds;
    }

    const Pattern &pattern_;
    int count_;
    double rate_;
    Recovery recovery_[kMax];
    std::vector<Ending> table_[kMax];
    std::vector<std::int64_t> row_[kMax];  // Of the table, by the number of the base.
};

// Long-run efficiency of a pattern that is prepared; 0 if it makes no progress to speak of.
inline double efficiency(const Pattern &pattern) {
    const double seconds = Renewal(pattern).cycle_seconds();
    const double useful = pattern.interval * static_cast<double>(pattern.positions());
    return std::isfinite(seconds) && seconds > 0 ? useful / seconds : 0.0;
}

}  // namespace levels
