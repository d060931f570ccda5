"""The learning rates that optimizers race with, unless the user says otherwise."""

# Torch's that have another name here.
_LIKE = {
    "adamw": "Adam", "nadam": "Nadam", "radam": "Adam", "sparseadam": "Adam", "asgd": "SGD",
    "rprop": "Adam", "muon": "Adamax", "adafactor": "Adamax", "adamwcoupled": "Adam",
    "adamwdecoupled": "Adam", "adamwindependent": "Adam", "adamwcautiousdecay": "Adam",
    "nadamw": "Adam", "laprop": "Adam", "ademamix": "Adam", "adopt": "Adam", "adan": "Adamax",
    "cautiousadamw": "Adam", "stableadamw": "Adam", "lamb": "Adamax", "adamh": "Adamax",
    "schedulefreeadamw": "Adam", "schedulefreesgd": "SGD",
    "normuon": "Adamax", "muonh": "Adamax", "soap": "Adam", "klsoap": "Adam",
}  # fmt: skip


def default_rate(problem: str, name: str, of: str) -> float:
    """The rate of an optimizer.

    Args:
        problem: Name of the problem.
        name: Its name; those of torch's kind have the rate of the rule of that name.
        of: The name of its class.
    """
    rates, own = DEFAULT_LEARNING_RATE[problem], name.rpartition(":")[2]
    if name.startswith(("optim:", "torch:")):
        return rates[_LIKE.get(own.lower(), own)]
    return rates[name if name in rates else of]


# Found by trying; none should lose because of its rate alone.
DEFAULT_LEARNING_RATE: dict[str, dict[str, float]] = {
    "digits": {
        "SGD": 0.2,
        "Momentum": 0.05,
        "Nesterov": 0.05,
        "Adam": 0.002,
        "AMSGrad": 0.002,
        "Adamax": 0.01,
        "Nadam": 0.002,
        "Adagrad": 0.1,
        "Adadelta": 1.0,
        "RMSprop": 0.002,
        "CenteredRMSprop": 0.002,
        "MomentumRMSprop": 0.002,
        "CenteredMomentumRMSprop": 0.002,
        "Ftrl": 0.02,
        "FtrlPower": 0.02,
        "v1:GradientDescentOptimizer": 0.2,
        "v1:MomentumOptimizer": 0.05,
        "v1:AdagradOptimizer": 0.1,
        "v1:AdagradDAOptimizer": 0.05,
        "v1:AdadeltaOptimizer": 2.5,
        "v1:RMSPropOptimizer": 0.002,
        "v1:AdamOptimizer": 0.002,
        "v1:LazyAdamOptimizer": 0.002,
        "v1:NadamOptimizer": 0.002,
        "v1:AdaMaxOptimizer": 0.01,
        "v1:AdamWOptimizer": 0.002,
        "v1:MomentumWOptimizer": 0.05,
        "v1:FtrlOptimizer": 0.02,
        "v1:ProximalAdagradOptimizer": 0.1,
        "v1:ProximalGradientDescentOptimizer": 0.2,
        "v1:LARSOptimizer": 4.0,
        "Lion": 0.0015,
        "openseq2seq:NovoGrad": 0.01,
    },
    "lines": {
        "SGD": 0.07,
        "Momentum": 0.007,
        "Nesterov": 0.02,
        "Adam": 0.002,
        "AMSGrad": 0.006,
        "Adamax": 0.01,
        "Nadam": 0.002,
        "Adagrad": 0.1,
        "Adadelta": 3.0,
        "RMSprop": 0.002,
        "CenteredRMSprop": 0.002,
        "MomentumRMSprop": 0.002,
        "CenteredMomentumRMSprop": 0.0007,
        "Ftrl": 0.02,
        "FtrlPower": 0.02,
        "v1:GradientDescentOptimizer": 0.07,
        "v1:MomentumOptimizer": 0.007,
        "v1:AdagradOptimizer": 0.1,
        "v1:AdagradDAOptimizer": 0.2,
        "v1:AdadeltaOptimizer": 8.0,
        "v1:RMSPropOptimizer": 0.0007,
        "v1:AdamOptimizer": 0.006,
        "v1:LazyAdamOptimizer": 0.006,
        "v1:NadamOptimizer": 0.004,
        "v1:AdaMaxOptimizer": 0.01,
        "v1:AdamWOptimizer": 0.002,
        "v1:MomentumWOptimizer": 0.007,
        "v1:FtrlOptimizer": 0.02,
        "v1:ProximalAdagradOptimizer": 0.1,
        "v1:ProximalGradientDescentOptimizer": 0.07,
        "v1:LARSOptimizer": 1.0,
        "Lion": 0.004,
        "openseq2seq:NovoGrad": 0.02,
    },
    "stdlib": {
        "SGD": 4.0,
        "Momentum": 0.5,
        "Nesterov": 0.5,
        "Adam": 0.005,
        "AMSGrad": 0.005,
        "Adamax": 0.02,
        "Nadam": 0.005,
        "Adagrad": 1.0,
        "Adadelta": 6.0,
        "RMSprop": 0.005,
        "CenteredRMSprop": 0.005,
        "MomentumRMSprop": 0.005,
        "CenteredMomentumRMSprop": 0.005,
        "Ftrl": 0.1,
        "FtrlPower": 0.1,
        "v1:GradientDescentOptimizer": 4.0,
        "v1:MomentumOptimizer": 0.5,
        "v1:AdagradOptimizer": 1.0,
        "v1:AdagradDAOptimizer": 1.0,
        "v1:AdadeltaOptimizer": 6.0,
        "v1:RMSPropOptimizer": 0.005,
        "v1:AdamOptimizer": 0.005,
        "v1:LazyAdamOptimizer": 0.005,
        "v1:NadamOptimizer": 0.005,
        "v1:AdaMaxOptimizer": 0.02,
        "v1:AdamWOptimizer": 0.005,
        "v1:MomentumWOptimizer": 0.5,
        "v1:FtrlOptimizer": 0.1,
        "v1:ProximalAdagradOptimizer": 1.0,
        "v1:ProximalGradientDescentOptimizer": 4.0,
        "v1:LARSOptimizer": 4.0,
        "Lion": 0.0005,
        "openseq2seq:NovoGrad": 0.05,
    },
}
