"""What fails, and how often.

single_level  intervals for one level and failures without memory: Young, Daly
"""
