"""A script for TensorFlow 1: two networks against each other, each trained on its own variables.

Only the import changed. Run it with `python examples/tf1_gan.py`.
"""

import numpy as np

import thalweg.tf.compat.v1 as tf

BATCH, STEPS, NOISE = 128, 600, 4


def generator(z):
    with tf.variable_scope("generator"):
        h = tf.layers.dense(z, 32, activation=tf.nn.relu)
        h = tf.layers.dense(h, 32, activation=tf.nn.relu)
        return tf.layers.dense(h, 2)


def discriminator(x, reuse=None):
    with tf.variable_scope("discriminator", reuse=reuse):
        h = tf.layers.dense(x, 32, activation=tf.nn.leaky_relu)
        h = tf.layers.dense(h, 32, activation=tf.nn.leaky_relu)
        return tf.layers.dense(h, 1)


def cross_entropy(logits, label):
    labels = tf.ones_like(logits) * label
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))


def real(count, random):
    """Return points around (2, -1)."""
    return random.multivariate_normal([2, -1], [[0.3, 0.2], [0.2, 0.3]], count)


def main():
    tf.reset_default_graph()
    tf.set_random_seed(3)
    x = tf.placeholder(tf.float32, [None, 2])
    z = tf.placeholder(tf.float32, [None, NOISE])
    fake = generator(z)
    real_logits = discriminator(x)
    fake_logits = discriminator(fake, reuse=True)

    d_loss = cross_entropy(real_logits, 0.9) + cross_entropy(fake_logits, 0.0)
    g_loss = cross_entropy(fake_logits, 1.0)
    d_vars = [v for v in tf.trainable_variables() if v.name.startswith("discriminator")]
    g_vars = tf.get_collection(tf.GraphKeys.TRAINABLE_VARIABLES, scope="generator")
    d_train = tf.train.AdamOptimizer(2e-3, beta1=0.5).minimize(d_loss, var_list=d_vars)
    g_train = tf.train.AdamOptimizer(1e-3, beta1=0.5).minimize(g_loss, var_list=g_vars)

    random = np.random.RandomState(0)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for step in range(STEPS):
            feed = {x: real(BATCH, random), z: random.randn(BATCH, NOISE)}
            _, d_value = sess.run([d_train, d_loss], feed)
            _, g_value = sess.run([g_train, g_loss], {z: random.randn(BATCH, NOISE)})
            if step % 200 == 0:
                print(f"step {step}: discriminator {d_value:.3f}, generator {g_value:.3f}")
        samples = sess.run(fake, {z: random.randn(1000, NOISE)})
    print(f"mean of what it makes: {samples.mean(0).round(2)}; that of the data: [2, -1]")
    return samples.mean(0)


if __name__ == "__main__":
    tf.disable_eager_execution()
    main()
