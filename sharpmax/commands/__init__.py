"""What each verb of the command line does, as Python functions: one file per verb."""
