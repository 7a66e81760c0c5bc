"""How often to save, and how often to which level: models, exact evaluation, search, learning.

system        what decides, and the answer: levels with rates and times; a pattern
tier_costs    what a tier can do and asks for: bandwidths, latency, room, prices
typical       what tiers can do where nobody has measured them, with sources
costs         from bandwidths, prices and bytes to a system
closed_form   first-order optima, and the choice of levels
exact         expected efficiency of a pattern: renewal, any number of levels
renewal       the same without the native core
simulation    the same by simulation, and what has no exact evaluation
surrogate     efficiency by a learned function, for thousands of patterns at once
search        the best pattern, from the surrogate or the closed form to the exact optimum
tuning        the whole answer with its reasons
presets       what matters besides efficiency
rule          what a site and a user say of it; when a task saves
replanning    the same again while a task runs, in bounded steps

``docs/concepts/policy.md`` has the method, its sources and its limits.
"""
