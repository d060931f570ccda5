"""Default learning rates of optimizers in a race, per problem."""

# Classes of torch and thalweg.optim that have the default rate of a similar Keras class.
_SIMILAR_CLASSES = {
    "adamw": "Adam", "nadam": "Nadam", "radam": "Adam", "sparseadam": "Adam", "asgd": "SGD",
    "rprop": "Adam", "muon": "Adamax", "adafactor": "Adamax", "adafactorhf": "Adam",
    "adamwcoupled": "Adam",
    "adamwdecoupled": "Adam", "adamwindependent": "Adam", "adamwcautiousdecay": "Adam",
    "nadamw": "Adam", "laprop": "Adam", "ademamix": "Adam", "adopt": "Adam", "adan": "Adamax",
    "cautiousadamw": "Adam", "stableadamw": "Adam", "lamb": "Adamax", "adamh": "Adamax",
    "mars": "Adamax", "marslion": "Lion",
    "schedulefreeadamw": "Adam", "schedulefreesgd": "SGD",
    "normuon": "Adamax", "adamuon": "Adam", "muonh": "Adamax", "soap": "Adam",
    "klsoap": "Adam", "sm3": "Adagrad",
}  # fmt: skip


def default_rate(problem: str, name: str, class_name: str) -> float:
    """Return the default learning rate of an optimizer, by `name` or else by `class_name`."""
    rates, short_name = DEFAULT_LEARNING_RATE[problem], name.rpartition(":")[2]
    if name.startswith(("optim:", "torch:")):
        return (
            rates.get(f"optim:{short_name}")
            or rates[_SIMILAR_CLASSES.get(short_name.lower(), short_name)]
        )
    return rates[name if name in rates else class_name]


# Rates for digits, lines, stdlib and lm by name, tuned by hand, so that no optimizer loses only
# because of its rate. None stands for the rate of a similar class.
_RATES: dict[str, tuple[float | None, ...]] = {
    "SGD": (0.2, 0.07, 4.0, 1.0),
    "Momentum": (0.05, 0.007, 0.5, 0.5),
    "Nesterov": (0.05, 0.02, 0.5, 0.5),
    "Adam": (0.002, 0.002, 0.005, 0.01),
    "AMSGrad": (0.002, 0.006, 0.005, 0.01),
    "Adamax": (0.01, 0.01, 0.02, 0.02),
    "Nadam": (0.002, 0.002, 0.005, 0.01),
    "Adagrad": (0.1, 0.1, 1.0, 0.5),
    "Adadelta": (1.0, 3.0, 6.0, 1.0),
    "RMSprop": (0.002, 0.002, 0.005, 0.01),
    "CenteredRMSprop": (0.002, 0.002, 0.005, 0.01),
    "MomentumRMSprop": (0.002, 0.002, 0.005, 0.01),
    "CenteredMomentumRMSprop": (0.002, 0.0007, 0.005, 0.01),
    "Ftrl": (0.02, 0.02, 0.1, 0.02),
    "FtrlPower": (0.02, 0.02, 0.1, 0.02),
    "v1:GradientDescentOptimizer": (0.2, 0.07, 4.0, 1.0),
    "v1:MomentumOptimizer": (0.05, 0.007, 0.5, 0.5),
    "v1:AdagradOptimizer": (0.1, 0.1, 1.0, 0.5),
    "v1:AdagradDAOptimizer": (0.05, 0.2, 1.0, 0.05),
    "v1:AdadeltaOptimizer": (2.5, 8.0, 6.0, 2.5),
    "v1:RMSPropOptimizer": (0.002, 0.0007, 0.005, 0.01),
    "v1:AdamOptimizer": (0.002, 0.006, 0.005, 0.01),
    "v1:LazyAdamOptimizer": (0.002, 0.006, 0.005, 0.01),
    "v1:NadamOptimizer": (0.002, 0.004, 0.005, 0.01),
    "v1:AdaMaxOptimizer": (0.01, 0.01, 0.02, 0.02),
    "v1:AdamWOptimizer": (0.002, 0.002, 0.005, 0.01),
    "v1:MomentumWOptimizer": (0.05, 0.007, 0.5, 0.5),
    "v1:FtrlOptimizer": (0.02, 0.02, 0.1, 0.02),
    "v1:ProximalAdagradOptimizer": (0.1, 0.1, 1.0, 0.5),
    "v1:ProximalGradientDescentOptimizer": (0.2, 0.07, 4.0, 1.0),
    "v1:LARSOptimizer": (4.0, 1.0, 4.0, 4.0),
    "Lion": (0.0015, 0.004, 0.0005, 0.005),
    "openseq2seq:NovoGrad": (0.01, 0.02, 0.05, 0.01),
    "optim:Muon": (0.002, 0.005, None, 0.02),
    "optim:NorMuon": (0.002, 0.005, None, 0.02),
    "optim:SOAP": (0.005, None, None, 0.01),
    "optim:KLSOAP": (0.005, None, None, 0.01),
    "optim:ADOPT": (0.005, None, None, None),
    "optim:LAMB": (0.005, 0.005, None, 0.01),
    "optim:ScheduleFreeAdamW": (0.02, 0.05, None, 0.02),
    "optim:ScheduleFreeSGD": (1.0, None, None, None),
    "optim:Prodigy": (1.0, 1.0, 1.0, 1.0),
    "optim:AdamH": (None, 0.02, None, None),
    "optim:MuonH": (None, None, None, 0.02),
    "optim:Adan": (None, None, None, 0.02),
}
DEFAULT_LEARNING_RATE: dict[str, dict[str, float]] = {
    problem: {name: rate for name, rates in _RATES.items() if (rate := rates[index]) is not None}
    for index, problem in enumerate(("digits", "lines", "stdlib", "lm"))
}
