"""The laboratory beside howsure: experiments, demonstration, the released code's formulas."""
