"""A script for TensorFlow 1: a convolutional autoencoder, with variables of its own making.

Only the import changed. Run it with `python examples/tf1_autoencoder.py`.
"""

import numpy as np

import thalweg.tf.compat.v1 as tf

BATCH, STEPS, SIZE = 32, 200, 16


def bars(count, random):
    """Return images with one bright row and one bright column."""
    images = np.zeros((count, SIZE, SIZE, 1), np.float32)
    for image, row, column in zip(
        images, random.randint(SIZE, size=count), random.randint(SIZE, size=count)
    ):
        image[row] = 1
        image[:, column] = 1
    return images


def encoder(x):
    w = tf.get_variable("w", [3, 3, 1, 8], initializer=tf.truncated_normal_initializer(stddev=0.1))
    b = tf.get_variable("b", [8], initializer=tf.constant_initializer(0.1))
    h = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, w, strides=[1, 1, 1, 1], padding="SAME"), b))
    h = tf.nn.max_pool(h, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="SAME")
    h = tf.layers.conv2d(h, 16, 3, padding="same", activation=tf.nn.relu)
    h = tf.layers.max_pooling2d(h, 2, 2)
    return tf.layers.dense(tf.layers.flatten(h), 32)


def decoder(code):
    h = tf.layers.dense(code, 4 * 4 * 16, activation=tf.nn.relu)
    h = tf.reshape(h, [-1, 4, 4, 16])
    h = tf.layers.conv2d_transpose(h, 8, 3, strides=2, padding="same", activation=tf.nn.relu)
    return tf.layers.conv2d_transpose(h, 1, 3, strides=2, padding="same")


def main():
    tf.reset_default_graph()
    tf.set_random_seed(1)
    x = tf.placeholder(tf.float32, [None, SIZE, SIZE, 1])
    with tf.variable_scope("encoder"):
        code = encoder(x)
    with tf.variable_scope("decoder"):
        logits = decoder(code)
    loss = tf.losses.sigmoid_cross_entropy(x, logits)
    error = tf.reduce_mean(tf.square(tf.nn.sigmoid(logits) - x))
    train_op = tf.train.AdamOptimizer(5e-3).minimize(loss)

    random = np.random.RandomState(0)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for step in range(STEPS):
            _, value = sess.run([train_op, loss], {x: bars(BATCH, random)})
            if step % 50 == 0:
                print(f"step {step}: loss {value:.3f}")
        images = bars(256, random)
        mean_error = float(sess.run(error, {x: images}))
    print(f"mean squared error {mean_error:.4f}; of the mean image {images.var(0).mean():.4f}")
    return mean_error / float(images.var(0).mean())


if __name__ == "__main__":
    tf.disable_eager_execution()
    main()
