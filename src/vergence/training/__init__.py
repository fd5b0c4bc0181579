"""Local training: solvers, optimiser steps, devices and pruning."""
