"""A script for TensorFlow 1: vectors of words, by noise-contrastive estimation.

Only the import changed. Run it with `python examples/tf1_word2vec.py`. The text is made up: words
of a topic follow each other.
"""

import math

import numpy as np

import thalweg.tf.compat.v1 as tf

TOPICS, WORDS, DIMENSIONS = 4, 8, 16
BATCH, STEPS, WINDOW, SAMPLED = 256, 600, 2, 8


def text(length, random):
    """Return numbers of words, in runs of one topic."""
    topics = np.repeat(random.randint(TOPICS, size=length // 10), 10)
    return topics * WORDS + random.randint(WORDS, size=len(topics))


def batch(words, random):
    """Return words, and a neighbour of each."""
    places = random.randint(WINDOW, len(words) - WINDOW, size=BATCH)
    steps = random.choice([-2, -1, 1, 2], size=BATCH)
    return words[places], words[places + steps][:, None]


def main():
    tf.reset_default_graph()
    tf.set_random_seed(2)
    size = TOPICS * WORDS
    inputs = tf.placeholder(tf.int32, shape=[BATCH])
    labels = tf.placeholder(tf.int32, shape=[BATCH, 1])
    embeddings = tf.Variable(tf.random_uniform([size, DIMENSIONS], -1.0, 1.0))
    embed = tf.nn.embedding_lookup(embeddings, inputs)
    nce_weights = tf.Variable(
        tf.truncated_normal([size, DIMENSIONS], stddev=1.0 / math.sqrt(DIMENSIONS))
    )
    nce_biases = tf.Variable(tf.zeros([size]))
    loss = tf.reduce_mean(
        tf.nn.nce_loss(
            weights=nce_weights,
            biases=nce_biases,
            labels=labels,
            inputs=embed,
            num_sampled=SAMPLED,
            num_classes=size,
        )
    )
    optimizer = tf.train.AdagradOptimizer(1.0).minimize(loss)
    norm = tf.sqrt(tf.reduce_sum(tf.square(embeddings), 1, keep_dims=True))
    normalized = embeddings / norm
    similarity = tf.matmul(normalized, normalized, transpose_b=True)

    random = np.random.RandomState(0)
    words = text(20_000, random)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for step in range(STEPS):
            centers, contexts = batch(words, random)
            _, value = sess.run([optimizer, loss], feed_dict={inputs: centers, labels: contexts})
            if step % 200 == 0:
                print(f"step {step}: loss {value:.3f}")
        similarities = sess.run(similarity)
    np.fill_diagonal(similarities, -1)
    is_same_topic = similarities.argmax(1) // WORDS == np.arange(size) // WORDS
    print(f"the nearest word is of the same topic for {is_same_topic.mean():.0%}")
    return is_same_topic.mean()


if __name__ == "__main__":
    tf.disable_eager_execution()
    main()
