"""What is done before and after runs, above a site: measure it, tune for it, learn, draw.

calibrate, calibration   measure the tiers of a site with the product's own saves
train                    make the surrogate of the multi-level policy anew
tune                     the best pattern for a site and a state, or for what a run has met
plots                    its efficiency surface, and where the time goes
"""
