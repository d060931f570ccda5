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
    """Return the default learning rate of an optimizer.

    Args:
        problem: Name of the problem.
        name: The optimizer's name, such as `optim:Adam`.
        class_name: The name of the optimizer's class.
    """
    rates, short_name = DEFAULT_LEARNING_RATE[problem], name.rpartition(":")[2]
    if name.startswith(("optim:", "torch:")):
        return (
            rates.get(f"optim:{short_name}")
            or rates[_SIMILAR_CLASSES.get(short_name.lower(), short_name)]
        )
    return rates[name if name in rates else class_name]


# Names by rates for digits, lines, stdlib and lm, tuned by hand, so that no optimizer loses only
# because of its rate. None stands for the rate of a similar class.
_TUNED: dict[tuple[float | None, ...], str] = {
    (0.2, 0.07, 4.0, 1.0): "SGD v1:GradientDescentOptimizer v1:ProximalGradientDescentOptimizer",
    (0.05, 0.007, 0.5, 0.5): "Momentum v1:MomentumOptimizer v1:MomentumWOptimizer",
    (0.05, 0.02, 0.5, 0.5): "Nesterov",
    (0.002, 0.002, 0.005, 0.01): "Adam Nadam RMSprop"
        " CenteredRMSprop MomentumRMSprop v1:AdamWOptimizer",
    (0.002, 0.006, 0.005, 0.01): "AMSGrad v1:AdamOptimizer v1:LazyAdamOptimizer",
    (0.01, 0.01, 0.02, 0.02): "Adamax v1:AdaMaxOptimizer",
    (0.1, 0.1, 1.0, 0.5): "Adagrad v1:AdagradOptimizer v1:ProximalAdagradOptimizer",
    (1.0, 3.0, 6.0, 1.0): "Adadelta",
    (0.002, 0.0007, 0.005, 0.01): "CenteredMomentumRMSprop v1:RMSPropOptimizer",
    (0.02, 0.02, 0.1, 0.02): "Ftrl FtrlPower v1:FtrlOptimizer",
    (0.05, 0.2, 1.0, 0.05): "v1:AdagradDAOptimizer",
    (2.5, 8.0, 6.0, 2.5): "v1:AdadeltaOptimizer",
    (0.002, 0.004, 0.005, 0.01): "v1:NadamOptimizer",
    (4.0, 1.0, 4.0, 4.0): "v1:LARSOptimizer",
    (0.0015, 0.004, 0.0005, 0.005): "Lion",
    (0.01, 0.02, 0.05, 0.01): "openseq2seq:NovoGrad",
    (0.002, 0.005, None, 0.02): "optim:Muon optim:NorMuon",
    (0.005, None, None, 0.01): "optim:SOAP optim:KLSOAP",
    (0.005, None, None, None): "optim:ADOPT",
    (0.005, 0.005, None, 0.01): "optim:LAMB",
    (0.02, 0.05, None, 0.02): "optim:ScheduleFreeAdamW",
    (1.0, None, None, None): "optim:ScheduleFreeSGD",
    (1.0, 1.0, 1.0, 1.0): "optim:Prodigy",
    (None, 0.02, None, None): "optim:AdamH",
    (None, None, None, 0.02): "optim:MuonH optim:Adan",
}  # fmt: skip
_RATES = {name: rates for rates, names in _TUNED.items() for name in names.split()}
DEFAULT_LEARNING_RATE: dict[str, dict[str, float]] = {
    problem: {name: rate for name, rates in _RATES.items() if (rate := rates[index]) is not None}
    for index, problem in enumerate(("digits", "lines", "stdlib", "lm"))
}
