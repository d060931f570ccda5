"""A training script of TensorFlow 1, ported: placeholders, feed_dict, a decaying learning rate.

The original stands in docs/migrate-from-tf1.md. What changed: the import, the layers (torch's), the
loss (torch's) and the source of the data. The graph, the session, the optimizer, its learning rate
and the training loop are as they were.

Run it with `python examples/tf1_digits.py`; it needs scikit-learn for the data.
"""

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits

import thalweg.v1 as tf

BATCH, STEPS = 64, 400


def main() -> float:
    torch.manual_seed(0)
    images, labels = load_digits(return_X_y=True)
    images = images.astype(np.float32) / 16
    order = np.random.RandomState(0).permutation(len(images))
    train, test = order[360:], order[:360]

    graph = tf.Graph()
    with graph.as_default():
        x = tf.placeholder(torch.float32, [None, 64], name="x")
        y = tf.placeholder(torch.int64, [None], name="y")
        net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
        logits = net(x)
        loss = F.cross_entropy(logits, y)
        correct = torch.eq(logits.argmax(dim=1), y).float()
        accuracy = correct.mean()

        global_step = tf.train.get_or_create_global_step()
        rate = tf.train.exponential_decay(0.01, global_step, 100, 0.9, staircase=True)
        optimizer = tf.train.AdamOptimizer(rate)
        train_op = optimizer.minimize(loss, global_step=global_step)
        init = tf.global_variables_initializer()

    batches = np.random.RandomState(1)
    with tf.Session(graph=graph) as session:
        session.run(init)
        for step in range(STEPS):
            rows = batches.choice(train, BATCH)
            feed = {x: images[rows], y: labels[rows]}
            _, value, current_rate = session.run([train_op, loss, rate], feed_dict=feed)
            if step % 100 == 0:
                print(f"step {step}: loss {value:.3f}, learning rate {current_rate:.5f}")
        score = session.run(accuracy, feed_dict={x: images[test], y: labels[test]})
        steps = session.run(global_step)
    print(f"{steps} steps, accuracy on the test images {score:.3f}")
    return float(score)


if __name__ == "__main__":
    main()
