"""What is done before and after runs, above a site: measure it, tune for it, learn, draw.

request, measure   measure the tiers of a site with the product's own saves (one_tier, saves,
                   crew, writer, sandbox are its parts)
calibration        the file that comes of it
informing          what a running task is told of a site
tune               the best pattern for a site and a state (sources: where the costs of tiers
                   are from; schemes: redundancy between nodes; site_lines: what to write into
                   the site file; met: what a run has met)
plots              its efficiency surface, and where the time goes
train              make the surrogate of the multi-level policy anew
"""
