"""CutMix (Keras example) in a `tf.data` pipeline: two shuffled copies are zipped and mixed."""

import keras
import tensorflow as tf
from shared import image_net, image_schema, images

from elasticdl import Mode

GROUP = "Input"
EXPECT = "differs: random draws are a function of (seed, epoch, shard), not of a generator's state"

IMG_SIZE = 8
AUTO = tf.data.AUTOTUNE

data_schema = image_schema
loss = keras.losses.CategoricalCrossentropy(from_logits=True)


def sample_beta_distribution(size, concentration_0=0.2, concentration_1=0.2):
    gamma_1_sample = tf.random.gamma(shape=[size], alpha=concentration_1)
    gamma_2_sample = tf.random.gamma(shape=[size], alpha=concentration_0)
    return gamma_1_sample / (gamma_1_sample + gamma_2_sample)


@tf.function
def get_box(lambda_value):
    cut_rat = tf.math.sqrt(1.0 - lambda_value)

    cut_w = tf.cast(IMG_SIZE * cut_rat, tf.int32)  # rw
    cut_h = tf.cast(IMG_SIZE * cut_rat, tf.int32)  # rh

    cut_x = tf.random.uniform((1,), minval=0, maxval=IMG_SIZE, dtype=tf.int32)  # rx
    cut_y = tf.random.uniform((1,), minval=0, maxval=IMG_SIZE, dtype=tf.int32)  # ry

    boundaryx1 = tf.clip_by_value(cut_x[0] - cut_w // 2, 0, IMG_SIZE)
    boundaryy1 = tf.clip_by_value(cut_y[0] - cut_h // 2, 0, IMG_SIZE)
    bbx2 = tf.clip_by_value(cut_x[0] + cut_w // 2, 0, IMG_SIZE)
    bby2 = tf.clip_by_value(cut_y[0] + cut_h // 2, 0, IMG_SIZE)

    target_h = bby2 - boundaryy1
    if target_h == 0:
        target_h += 1
    target_w = bbx2 - boundaryx1
    if target_w == 0:
        target_w += 1
    return boundaryx1, boundaryy1, target_h, target_w


@tf.function
def cutmix(train_ds_one, train_ds_two):
    (image1, label1), (image2, label2) = train_ds_one, train_ds_two

    alpha = [0.25]
    beta = [0.25]
    lambda_value = sample_beta_distribution(1, alpha, beta)
    lambda_value = lambda_value[0][0]

    boundaryx1, boundaryy1, target_h, target_w = get_box(lambda_value)
    boundaryx1 = tf.minimum(boundaryx1, IMG_SIZE - 1)
    boundaryy1 = tf.minimum(boundaryy1, IMG_SIZE - 1)

    crop2 = tf.image.crop_to_bounding_box(image2, boundaryy1, boundaryx1, target_h, target_w)
    image2 = tf.image.pad_to_bounding_box(crop2, boundaryy1, boundaryx1, IMG_SIZE, IMG_SIZE)
    crop1 = tf.image.crop_to_bounding_box(image1, boundaryy1, boundaryx1, target_h, target_w)
    img1 = tf.image.pad_to_bounding_box(crop1, boundaryy1, boundaryx1, IMG_SIZE, IMG_SIZE)

    image1 = image1 - img1
    image = image1 + image2

    lambda_value = 1 - (target_w * target_h) / (IMG_SIZE * IMG_SIZE)
    lambda_value = tf.cast(lambda_value, tf.float32)
    label = lambda_value * label1 + (1 - lambda_value) * label2
    return image, label


def preprocess_image(image, label):
    image = tf.image.resize(image, (IMG_SIZE, IMG_SIZE))
    return image, tf.one_hot(label, 3)


def feed(dataset, mode):
    fields = {
        "image": tf.io.FixedLenFeature([8, 8, 2], tf.float32),
        "label": tf.io.FixedLenFeature([1], tf.int64),
    }

    def parse(record):
        example = tf.io.parse_single_example(record, fields)
        return example["image"], example["label"][0]

    dataset = dataset.map(parse)
    if mode != Mode.TRAINING:
        return dataset.map(preprocess_image, num_parallel_calls=AUTO)
    train_ds_one = dataset.shuffle(1024).map(preprocess_image, num_parallel_calls=AUTO)
    train_ds_two = dataset.shuffle(1024).map(preprocess_image, num_parallel_calls=AUTO)
    train_ds = tf.data.Dataset.zip((train_ds_one, train_ds_two))
    return train_ds.map(cutmix, num_parallel_calls=AUTO).prefetch(AUTO)


def custom_model():
    return image_net()


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    def pictures(records):
        return tf.data.Dataset.from_tensor_slices(images(records))

    one, two = (pictures(data.train).shuffle(1024).map(preprocess_image) for _ in range(2))
    model = custom_model()
    model.compile(optimizer(), loss)
    history = model.fit(
        tf.data.Dataset.zip((one, two)).map(cutmix, num_parallel_calls=AUTO).batch(data.batch_size),
        epochs=data.epochs,
        shuffle=False,
        validation_data=pictures(data.validation).map(preprocess_image).batch(data.batch_size),
        verbose=0,
    )
    return history.history, model
