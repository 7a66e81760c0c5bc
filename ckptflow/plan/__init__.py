"""What measures a machine and plans with what was measured: the calibration of a site."""
