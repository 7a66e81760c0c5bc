"""What fails, and how often: laws, rates by class, what is learnt of them, and published ones.

The *class* of a failure is the lowest level whose copies survive it:

0. a process dies;
1. a node loses its memory and comes back with its disk;
2. a node is lost;
3. more of the allocation is lost than redundancy rebuilds, or all of it;
4. the parallel file system is lost, or away for longer than one waits.

single_level  intervals for one level and failures without memory: Young, Daly
laws          how failures are spread over time: exponential, Weibull, a recorded trace
rates         how often each class happens to what runs together
survival      which losses of nodes redundancy does not survive: class 2 or class 3
estimation    rates from what is believed and what is observed
gamma         quantiles of the gamma distribution, for the estimation
known         rates that somebody has published, by name
"""
