"""Mistakes that type checkers find: one in each line that says so, and none elsewhere."""

import torch
from torch import nn

from thalweg import optim
from thalweg.optim import AdamW
from thalweg.optim.sgd import SGD

MODEL = nn.Linear(2, 2)
PARAMS = [*MODEL.parameters()]

optim.AdamW(PARAMS, lr="high")  # wrong
optim.AdamW(PARAMS, learning_rte=0.1)  # wrong
AdamW(PARAMS, clip_grad_norm="1")  # wrong
AdamW(PARAMS, clip_grad_nrm=1.0)  # wrong
AdamW(PARAMS, masters=1.5)  # wrong
AdamW(PARAMS, state_dtype="bfloat16")  # wrong
AdamW()  # wrong
SGD(PARAMS, 0.1, betas=(0.9, 0.99))  # wrong
SGD(PARAMS, 0.1, nesterov="yes")  # wrong
optim.Lion(PARAMS, eps=1e-8)  # wrong
optim.Muon(PARAMS, ns_steps="5")  # wrong
optim.ADOPT(PARAMS, clip_exp=None)  # wrong
optim.tensorflow.Ftrl(PARAMS, l3=0.1)  # wrong
optim.tensorflow.Adam(PARAMS, betas=0.9)  # wrong
optim.Mixed(PARAMS, lr=0.1)  # wrong
optim.RuleOptimizer(PARAMS, "Adam")  # wrong
KIND = optim.Adamm  # wrong
optim.lr_scheduler.StepLR(MODEL, 3)  # wrong
COUNT = optim.AdamW(PARAMS).last_step.count  # wrong
torch.nn.Linear(2, 2)
