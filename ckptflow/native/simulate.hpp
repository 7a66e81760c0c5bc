// Simulates a pattern of checkpoints, failure by failure, with what has no exact evaluation.
//
// Written as the story goes, copy by copy, and on purpose not by the insight of renewal.hpp, so
// that each is a check of the other. Failures of each law come from a stream of random numbers of
// their own, at times that do not depend on the pattern: with one seed all patterns meet the same.
#pragma once

#include "levels.hpp"

#include <deque>
#include <limits>

namespace levels {

constexpr double kNever = std::numeric_limits<double>::infinity();

// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): small, and each seed is a stream of its own.
class Random {
  public:
    explicit Random(std::uint64_t seed) : state_(seed) {}
    double uniform() {  // Above 0, at most 1.
        std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return (static_cast<double>((z ^ (z >> 31)) >> 11) + 1) * 0x1.0p-53;
    }

  private:
    std::uint64_t state_;
};

// When failures of one kind come: gap = scale * (-log u)^(1 / shape), or at given times.
struct Law {
    double scale = 0;  // Seconds; 0: never.
    double shape = 1;  // Of a Weibull distribution; 1: without memory.
    const double *times = nullptr;
    std::size_t time_count = 0;
    int klass = 0;     // Place of the level that these failures need.
};

class Arrivals {
  public:
    Arrivals(const Law &law, std::uint64_t seed) : law_(law), random_(seed) { pass(); }
    double next() const { return next_; }
    void pass() {
        if (law_.times) {
            next_ = at_ < law_.time_count ? law_.times[at_++] : kNever;
        } else if (law_.scale > 0) {
            const double e = -std::log(random_.uniform());
            next_ += law_.scale * (law_.shape == 1 ? e : std::pow(e, 1 / law_.shape));
        } else {
            next_ = kNever;
        }
    }

  private:
    Law law_;
    Random random_;
    std::size_t at_ = 0;
    double next_ = 0;
};

// What there is besides levels. Zero means: no such thing.
struct Surroundings {
    double walltime = 0;        // Of an allocation, seconds.
    double stop = 0;            // What a save before a planned stop takes.
    double queue = 0;           // From the end of an allocation to the next one.
    double resume = 0;          // Restoring after a planned stop.
    double notice = 0;          // How long before it is taken away an allocation is told.
    std::int64_t spares = -1;   // Nodes in reserve; negative: enough.
    double repair = 0;          // From the loss of a node until it is a spare again; 0: never.
    int node_law = kMax;        // From this law on failures take a node,
    int allocation_law = kMax;  // and from this one the allocation.
    std::int64_t capacity = 0;  // Checkpoints that fit on the innermost level.
    int taken_class = 0;        // Class of the failure that a preemption is without notice.
};

// One row of results: what happened while the frontier moved on by a number of positions.
struct Account {
    double elapsed, useful, blocked, interference, again, recovery, waiting;
    double failures[kMax + 1];  // By law; the last: preemptions.
    double copies[kMax];        // Begun.
    double planned_stops, abandoned, events;
};
constexpr std::size_t kAccountColumns = sizeof(Account) / sizeof(double);

class Simulation {
  public:
    Simulation(const Pattern &pattern, const Law *laws, int law_count, const Law &preemptions,
               const Surroundings &around, std::uint64_t seed)
        : pattern_(pattern), around_(around), chance_(mixed(seed, 100)),
          spares_(around.spares), preemptions_(preemptions, mixed(seed, 99)) {
        for (int at = 0; at < law_count; at++) {
            classes_.push_back(laws[at].klass);
            arrivals_.emplace_back(laws[at], mixed(seed, at));
        }
        look_ahead();
        begin_allocation();
    }

    // Moves the frontier on by some positions and says what that took. False: out of events.
    bool advance(std::int64_t positions, std::int64_t events, Account *account) {
        *account = Account{};
        account_ = account;
        events_max_ = static_cast<double>(events);
        const double began = now_;
        const std::int64_t target = frontier_ + positions;
        while (frontier_ < target && account->events < events_max_) segment();
        account->elapsed = now_ - began;
        return frontier_ >= target;
    }

  private:
    struct Copy {
        std::int64_t position;
        int level;
    };

    static std::uint64_t mixed(std::uint64_t seed, int stream) {
        Random random(seed * 1000003u + static_cast<std::uint64_t>(stream));
        random.uniform();
        return static_cast<std::uint64_t>(random.uniform() * 0x1.0p63);
    }

    void look_ahead() {
        next_ = kNever;
        for (std::size_t law = 0; law < arrivals_.size(); law++) {
            if (arrivals_[law].next() < next_) {
                next_ = arrivals_[law].next();
                next_law_ = law;
            }
        }
    }

    // Lets what comes while nothing is computed meet nothing. A long wait is many events, too.
    void skip_failures() {
        while (next_ <= now_ && account_->events < events_max_) {
            account_->events++;
            forget();
        }
    }

    // Looks for the failure after the next.
    void forget() {
        arrivals_[next_law_].pass();
        look_ahead();
    }

    // Computes one segment, or is interrupted in it.
    void segment() {
        account_->events++;
        const std::size_t place = static_cast<std::size_t>(position_ % pattern_.positions());
        double left = pattern_.segment[place];
        while (account_->events < events_max_) {
            const double stops = allocation_ends_ - around_.stop;
            const double next = std::min(std::min(next_, stops), preemptions_.next());
            if (now_ + left <= next) {
                now_ += left;
                arrive(place);
                return;
            }
            const double done = std::max(0.0, next - now_);
            now_ += done;
            if (next_ <= next) {
                account_->again += done + pattern_.segment[place] - left;
                fail();
                return;
            }
            left -= done;
            if (stops <= next) {
                planned_stop();
            } else if (!preempted(pattern_.segment[place] - left)) {
                return;
            }
        }
    }

    void arrive(std::size_t place) {
        position_++;
        if (position_ > frontier_) {
            frontier_ = position_;
            const int top = pattern_.top[static_cast<std::size_t>(position_ % pattern_.positions())];
            double blocked = 0;
            for (int at = 0; at <= top; at++) blocked += pattern_.level[at].blocked;
            account_->useful += pattern_.interval;
            account_->blocked += blocked;
            account_->interference += pattern_.segment[place] - pattern_.interval - blocked;
        } else {
            account_->again += pattern_.segment[place];
        }
        for (int at = 0; at < pattern_.count && position_ % pattern_.level[at].every == 0; at++) {
            account_->copies[at]++;
            flying_.push_back({position_, at});
        }
        const std::int64_t before = newest_[0];  // It stayed until this one was there.
        land();
        make_room(before);
    }

    // The copies that have arrived by now.
    void land() {
        for (std::size_t at = 0; at < flying_.size();) {
            const Copy &copy = flying_[at];
            if (copy.position + pattern_.level[copy.level].lag > position_) {
                at++;
                continue;
            }
            newest_[copy.level] = std::max(newest_[copy.level], copy.position);
            flying_.erase(flying_.begin() + static_cast<std::ptrdiff_t>(at));
        }
    }

    // What is on its way outward stays on the innermost level, besides this checkpoint and the one
    // before; if there is no room, the oldest goes.
    void make_room(std::int64_t last) {
        if (around_.capacity <= 0) return;
        while (true) {
            std::int64_t held = 2, oldest = position_, before = -1;
            for (const Copy &copy : flying_) {
                if (copy.position == position_ || copy.position == last) continue;
                held += copy.position != before;
                before = copy.position;
                oldest = std::min(oldest, copy.position);
            }
            if (held <= around_.capacity || oldest == position_) return;
            for (std::size_t at = flying_.size(); at-- > 0;) {
                if (flying_[at].position != oldest) continue;
                flying_.erase(flying_.begin() + static_cast<std::ptrdiff_t>(at));
                account_->abandoned++;
            }
        }
    }

    void fail() {
        allocation_lost_ = false;
        go_back(recovered(take_failure()));
        if (allocation_lost_) begin_allocation();  // The recovery had its wait for another one.
    }

    // The failure that is next happens; returns its class.
    int take_failure() {
        const int law = static_cast<int>(next_law_), klass = classes_[next_law_];
        account_->failures[law]++;
        account_->events++;
        forget();
        if (law >= around_.allocation_law) allocation_lost_ = true;
        if (law >= around_.node_law && around_.spares >= 0) replace_node();
        return klass;
    }

    void replace_node() {
        if (around_.repair > 0) repaired_.push_back(now_ + around_.repair);
        while (!repaired_.empty() && repaired_.front() <= now_) {
            repaired_.pop_front();
            spares_++;
        }
        if (spares_ > 0) {
            spares_--;
            return;
        }
        double wait = around_.queue;  // For another node, or until one is repaired.
        if (!repaired_.empty() && repaired_.front() - now_ < wait) {
            wait = std::max(0.0, repaired_.front() - now_);
            repaired_.pop_front();
        }
        pause(wait);
    }

    // Lets time pass in which nothing is computed; failures meanwhile meet nothing.
    void pause(double seconds) {
        now_ += seconds;
        account_->waiting += seconds;
        skip_failures();
    }

    // Recovers from a failure of a class; returns the class that it was at last.
    int recovered(int klass) {
        while (true) {
            const double needs = pattern_.level[klass].recovery;
            if (now_ + needs <= next_) {
                now_ += needs;
                account_->recovery += needs;
                account_->events++;
                const bool outermost = klass == pattern_.count - 1;
                if (outermost || !happens(pattern_.level[klass].escalation)) return klass;
                klass++;
                continue;
            }
            account_->recovery += next_ - now_;
            now_ = next_;
            const int met = take_failure();
            if (met > klass) {
                klass = met;
            } else if (met == klass && klass < pattern_.count - 1 &&
                       happens(pattern_.level[klass].second_loss)) {
                klass++;
            }
            if (account_->events >= events_max_) return klass;  // It would never end.
        }
    }

    bool happens(double probability) { return probability > 0 && chance_.uniform() <= probability; }

    void go_back(int klass) {
        position_ = newest_[klass];
        for (int at = 0; at < klass; at++) newest_[at] = position_;
        for (std::size_t at = flying_.size(); at-- > 0;) {
            if (flying_[at].level > klass && flying_[at].position <= position_) continue;
            flying_.erase(flying_.begin() + static_cast<std::ptrdiff_t>(at));
        }
    }

    // The allocation is about to end, and everybody knows: nothing is lost.
    void planned_stop() {
        account_->planned_stops++;
        account_->events++;
        now_ += around_.stop;
        account_->blocked += around_.stop;
        pause(around_.queue);
        begin_allocation();
        now_ += around_.resume;
        account_->recovery += around_.resume;
        skip();
    }

    // The allocation is taken away. False: too early, and it was a failure.
    bool preempted(double done) {
        account_->failures[kMax]++;
        account_->events++;
        preemptions_.pass();
        if (around_.notice >= around_.stop) {
            planned_stop();
            return true;
        }
        account_->again += done;
        pause(around_.queue);
        begin_allocation();
        go_back(recovered(around_.taken_class));
        skip();
        return false;
    }

    // What was to happen while nothing ran meets nothing.
    void skip() {
        skip_failures();
        while (preemptions_.next() <= now_ && account_->events < events_max_) {
            account_->events++;
            preemptions_.pass();
        }
    }

    void begin_allocation() {
        allocation_ends_ = around_.walltime > 0 ? now_ + around_.walltime : kNever;
    }

    const Pattern &pattern_;
    Surroundings around_;
    Random chance_;
    std::int64_t spares_;
    std::vector<int> classes_;  // Of the failures of each law.
    std::vector<Arrivals> arrivals_;
    Arrivals preemptions_;
    std::deque<double> repaired_;
    std::vector<Copy> flying_;
    std::int64_t newest_[kMax] = {};
    std::int64_t position_ = 0, frontier_ = 0;
    double now_ = 0, next_ = kNever, allocation_ends_ = kNever, events_max_ = 0;
    std::size_t next_law_ = 0;
    bool allocation_lost_ = false;
    Account *account_ = nullptr;
};

}  // namespace levels
