"""What is done before and after runs, above a site: measure it, tune for it, learn, draw.

request, measure   measure the tiers of a site with the product's own saves (one_tier, saves,
                   crew, writer, sandbox are its parts)
calibration        the file that comes of it
train              make the surrogate of the multi-level policy anew
tune               the best pattern for a site and a state, or for what a run has met
informing          what a running task is told of a site
plots              its efficiency surface, and where the time goes
"""
