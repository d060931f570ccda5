"""A script for TensorFlow 1: layers, a loss, batch normalization, dropout, summaries, a saver.

Only the import changed. Run it with `python examples/tf1_mlp.py [folder for summaries]`; with a
folder it needs tensorboard.
"""

import sys

import numpy as np

import thalweg.tf.compat.v1 as tf

BATCH, STEPS = 64, 200


def spirals(count, seed):
    """Return points of three spirals, and which each is of."""
    random = np.random.RandomState(seed)
    labels = random.randint(3, size=count)
    radius = random.uniform(0.1, 1, count)
    angle = radius * 4 + labels * 2 * np.pi / 3 + random.randn(count) * 0.1
    points = np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1)
    return points.astype(np.float32), labels


def network(x, training):
    regularizer = tf.contrib.layers.l2_regularizer(1e-4)
    with tf.variable_scope("network"):
        for units in (64, 64):
            x = tf.layers.dense(x, units, kernel_regularizer=regularizer)
            x = tf.nn.relu(tf.layers.batch_normalization(x, momentum=0.9, training=training))
            x = tf.layers.dropout(x, rate=0.1, training=training)
        return tf.layers.dense(x, 3)


def main(folder=None):
    tf.reset_default_graph()
    tf.set_random_seed(1)
    x = tf.placeholder(tf.float32, [None, 2], name="x")
    y = tf.placeholder(tf.int64, [None], name="y")
    training = tf.placeholder_with_default(False, [], name="training")

    logits = network(x, training)
    tf.losses.sparse_softmax_cross_entropy(labels=y, logits=logits)
    loss = tf.losses.get_total_loss()
    accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), y), tf.float32))

    global_step = tf.train.get_or_create_global_step()
    rate = tf.train.exponential_decay(0.01, global_step, 100, 0.5)
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        train_op = tf.train.AdamOptimizer(rate).minimize(loss, global_step=global_step)

    writer = None
    if folder:
        tf.summary.scalar("loss", loss)
        tf.summary.scalar("accuracy", accuracy)
        for variable in tf.trainable_variables():
            tf.summary.histogram(variable.op.name, variable)
        merged = tf.summary.merge_all()
        writer = tf.summary.FileWriter(folder, tf.get_default_graph())

    points, labels = spirals(2000, 0)
    batches = np.random.RandomState(1)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for step in range(STEPS):
            rows = batches.choice(len(points), BATCH)
            feed = {x: points[rows], y: labels[rows], training: True}
            _, value = sess.run([train_op, loss], feed_dict=feed)
            if step % 100 == 0:
                print(f"step {step}: loss {value:.3f}")
            if writer and step % 10 == 0:
                writer.add_summary(sess.run(merged, feed_dict=feed), step)
        if writer:
            writer.close()
        points, labels = spirals(500, 2)
        score = sess.run(accuracy, feed_dict={x: points, y: labels})
    print(f"accuracy on other points {score:.3f}")
    return float(score)


if __name__ == "__main__":
    tf.disable_eager_execution()
    main(*sys.argv[1:])
